// harp-perf: how fast are messages between two processes, and what do they cost?
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "base/names.h"
#include "harp/tools/arguments.h"
#include "harp/tools/perf_plan.h"
#include "harp/tools/perf_ranks.h"
#include "harp/tools/perf_report.h"
#include "harp/tools/perf_session.h"

namespace taco::harp::perf {
namespace {

int fail(const Status& status) {
  std::fprintf(stderr, "harp-perf: %s\n", status.message().c_str());
  return 1;
}

// A client has a process of its own here, since its settings are for a process that has none yet.
pid_t serve_in_child(Connection connection, bool tells) {
  const pid_t child = fork();
  if (child != 0) return child;
  const Status status = serve(std::move(connection));
  if (tells && !status.ok()) fail(status);
  _exit(status.ok() ? 0 : 1);
}

int run_server(const Choices& choices) {
  auto listener = Listener::at(choices.listen, static_cast<std::uint16_t>(choices.port));
  if (!listener.ok()) return fail(listener.status());
  std::printf("harp-perf: a server at port %u; on the other host: harp-perf --client HOST%s\n",
              listener->port(),
              listener->port() == kDefaultPort
                  ? ""
                  : (" --port " + std::to_string(listener->port())).c_str());
  std::fflush(stdout);
  for (;;) {
    auto connection = listener->accept();
    if (!connection.ok()) return fail(connection.status());
    std::printf("harp-perf: measured from %s\n", connection->other_host().c_str());
    std::fflush(stdout);
    const pid_t child = serve_in_child(std::move(connection).value(), true);
    if (child < 0) return fail(Status(Code::kResource, "fork failed"));
    int status = 0;
    waitpid(child, &status, 0);
    if (choices.once) return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  }
}

int run_client(const Choices& choices, Connection connection) {
  const std::vector<Setting> settings = settings_of(choices);
  const auto findings =
      measure(std::move(connection), settings, jobs_of(choices), [&](const Row& row) {
        if (choices.json || isatty(STDERR_FILENO) == 0) return;
        std::fprintf(stderr, "\r%s of %zu bytes by %s ...\033[K", name_of(row.job.measure),
                     row.job.bytes, name_of(row.job.by));
      });
  if (!choices.json && isatty(STDERR_FILENO) != 0) std::fprintf(stderr, "\r\033[K");
  if (!findings.ok()) return fail(findings.status());
  if (choices.json) {
    std::printf("%s\n", json_of(findings.value(), settings).c_str());
    return 0;
  }
  std::printf("%s to %s, %s\n", findings.value().transport.c_str(), findings.value().peer.c_str(),
              count_text(findings.value().engines, "engine").c_str());
  std::fputs(table_of(findings.value().rows).c_str(), stdout);
  return 0;
}

int run_here(const Choices& choices) {
  auto listener = Listener::at("127.0.0.1", 0);
  if (!listener.ok()) return fail(listener.status());
  const std::uint16_t port = listener->port();
  const pid_t child = fork();
  if (child < 0) return fail(Status(Code::kResource, "fork failed"));
  if (child == 0) {
    auto accepted = listener->accept();
    _exit(accepted.ok() && serve(std::move(accepted).value()).ok() ? 0 : 1);
  }
  auto connection = Connection::to("127.0.0.1", port);
  int failed = 1;
  if (connection.ok()) {
    failed = run_client(choices, std::move(connection).value());
  } else {
    failed = fail(connection.status());
    kill(child, SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return failed;
}

}  // namespace

int main_of(const std::vector<std::string>& arguments) {
  Choices choices;
  const Status status = take_choices(arguments, choices);
  if (!status.ok()) {
    std::fprintf(stderr, "harp-perf: %s\n", status.message().c_str());
    return 2;
  }
  if (choices.help) {
    std::fputs(help_text().c_str(), stdout);
    return 0;
  }
  if (choices.meets_by_files()) return measure_ranks(choices.ranks);
  if (choices.server) return run_server(choices);
  if (choices.client.empty()) return run_here(choices);
  auto connection = Connection::to(choices.client, static_cast<std::uint16_t>(choices.port));
  if (!connection.ok()) return fail(connection.status());
  return run_client(choices, std::move(connection).value());
}

}  // namespace taco::harp::perf

int main(int argc, char** argv) {
  return taco::harp::perf::main_of(std::vector<std::string>(argv + 1, argv + argc));
}
