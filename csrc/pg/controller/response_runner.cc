#include "pg/controller/response_runner.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "pg/controller/adasum.h"

namespace taco::pg::controller {
namespace {

std::size_t product_of(Shape::const_iterator begin, Shape::const_iterator end) {
  std::size_t product = 1;
  for (auto each = begin; each != end; ++each) product *= static_cast<std::size_t>(*each);
  return product;
}

std::size_t bytes_of_row(const Shape& shape, kernels::Dtype dtype) {
  return product_of(shape.begin() + 1, shape.end()) * kernels::size_of(dtype);
}

Shape with_rows(Shape shape, std::int64_t rows) {
  shape[0] = rows;
  return shape;
}

// out = in * factor, wherever they lie.
void scale_into(const Request& request, std::byte* out, const std::byte* in, std::size_t bytes,
                double factor) {
  if (bytes == 0) return;
  if (factor != 1.0) {
    kernels::scale(request.dtype, out, in, bytes / kernels::size_of(request.dtype), factor);
  } else if (out != in) {
    kernels::copy(out, in, bytes);
  }
}

// Consecutive pieces from `data` on, of rows[i] rows each.
std::vector<Piece> cut_rows(std::byte* data, const std::vector<std::int64_t>& rows,
                            std::size_t row_bytes) {
  std::vector<Piece> pieces;
  pieces.reserve(rows.size());
  for (const std::int64_t count : rows) {
    const std::size_t bytes = static_cast<std::size_t>(count) * row_bytes;
    pieces.push_back({data, bytes});
    data += bytes;
  }
  return pieces;
}

std::int64_t sum_of(const std::vector<std::int64_t>& rows) {
  std::int64_t sum = 0;
  for (const std::int64_t count : rows) sum += count;
  return sum;
}

}  // namespace

struct ResponseRunner::Job {
  // Tensors of the requests, one after the other.
  struct Part {
    std::size_t request = 0, tensor = 0;
    std::size_t bytes = 0;  // of its input
    Piece input, output;    // none where this rank has joined
  };
  const Request& first() const { return response.requests.front(); }
  const Request& request_of(const Part& part) const { return response.requests[part.request]; }
  Result<Piece> output_of(const Part& part, const Shape& shape) const {
    return pending[part.request]->output(part.tensor, shape);
  }

  Response response;
  std::vector<PendingPtr> pending;  // by request; null where this rank has joined
  std::vector<Part> parts;
  bool needs_buffer = false;
  bool is_last = false;
  std::byte* buffer = nullptr;  // while it has it
  std::shared_ptr<FusionBuffer> keeps_buffer;
  std::vector<OperationSpec> specs;
  std::optional<Adasum> adasum;
  std::uint32_t tag = 0;
  std::vector<std::int64_t> received_splits;
  std::size_t open = 0;  // operations
  Status status;
};

ResponseRunner::ResponseRunner(Owner& owner, int set, std::shared_ptr<Inbox> inbox,
                               std::shared_ptr<Communicator> data, std::size_t keeps)
    : owner_(owner),
      set_(set),
      inbox_(std::move(inbox)),
      data_(std::move(data)),
      rank_(data_->options().rank),
      world_(data_->options().world),
      buffer_(std::make_shared<FusionBuffer>(keeps)) {}

void ResponseRunner::run(Response response, std::vector<PendingPtr> pending, bool is_last) {
  auto job = std::make_shared<Job>();
  job->is_last = is_last;
  job->response = std::move(response);
  job->pending = std::move(pending);
  for (std::size_t r = 0; r < job->response.requests.size(); ++r) {
    const Request& request = job->response.requests[r];
    for (std::size_t t = 0; t < request.shapes.size(); ++t) {
      job->parts.push_back(
          {.request = r, .tensor = t, .bytes = bytes_of(request.shapes[t], request.dtype)});
    }
  }
  const Request& first = job->first();
  const bool is_alone = job->parts.size() == 1 && job->pending[0] != nullptr;
  job->needs_buffer = first.kind == Kind::kAdasum ||
                      (first.kind == Kind::kAllReduce && !is_alone) ||
                      (first.kind == Kind::kReduceScatter && first.prescale != 1.0);
  if (first.kind == Kind::kAdasum) job->tag = ++exchanges_;
  waiting_.push_back(std::move(job));
  start_waiting();
}

void ResponseRunner::start_waiting() {
  while (!waiting_.empty()) {
    if (waiting_.front()->needs_buffer && buffer_->is_taken()) return;
    const JobPtr job = std::move(waiting_.front());
    waiting_.pop_front();
    running_.insert(job);
    start(job);
  }
}

void ResponseRunner::fail_waiting(const Status& why) {
  std::deque<JobPtr> jobs;
  jobs.swap(waiting_);
  for (const JobPtr& job : jobs) {
    job->status = why;
    finish(job);
  }
}

void ResponseRunner::give_up(const Status& why) {
  fail_waiting(why);
  const std::set<JobPtr> jobs = running_;
  for (const JobPtr& job : jobs) {
    job->status = why;
    finish(job);
  }
}

// An operation that this rank leaves out would have the others take the next one for it, so there
// is none: the group ends at once, also where its owner has begun to leave and hears of no failure.
void ResponseRunner::fail(const Status& why) {
  if (failure_.ok()) {
    failure_ = why;
    data_->abort(why);
  }
  owner_.data_failed(why);
}

void ResponseRunner::start(const JobPtr& job) {
  job->status = failure_.ok() ? prepare(*job) : failure_;
  if (job->status.ok()) {
    tell_activity(*job, names_of(job->first().kind).activity);
    std::vector<OperationSpec> specs = std::move(job->specs);
    for (OperationSpec& spec : specs) begin(job, std::move(spec));
    if (job->adasum && exchange_more(job)) return;
  } else {
    fail(job->status);
  }
  if (job->open == 0) finish(job);
}

std::string ResponseRunner::busy_with() const {
  const JobPtr& job = running_.empty() ? waiting_.front() : *running_.begin();
  return described(job->first());
}

// Where the tensors lie now: they are not touched before.
Status ResponseRunner::find_inputs(Job& job) {
  std::size_t place = 0;
  for (std::size_t r = 0; r < job.pending.size(); ++r) {
    const std::size_t count = job.response.requests[r].shapes.size();
    if (job.pending[r] != nullptr) {
      const Result<std::vector<Piece>> inputs = job.pending[r]->inputs();
      if (!inputs.ok()) return inputs.status();
      for (std::size_t t = 0; t < count; ++t) job.parts[place + t].input = inputs.value()[t];
    }
    place += count;
  }
  return Status();
}

Status ResponseRunner::prepare(Job& job) {
  TACO_RETURN_IF_ERROR(find_inputs(job));
  switch (job.first().kind) {
    case Kind::kAllReduce:
      return prepare_all_reduce(job);
    case Kind::kAdasum:
      return prepare_adasum(job);
    default:
      return prepare_tensors(job);
  }
}

// The parts, times the factor before, one after the other in the buffer, which has `bytes`.
Status ResponseRunner::fill_buffer(Job& job, std::size_t bytes) {
  Result<std::byte*> memory = buffer_->take(std::max<std::size_t>(bytes, 1));
  if (!memory.ok()) return memory.status();
  job.buffer = *memory;
  job.keeps_buffer = buffer_;
  tell_activity(job, "MEMCPY_IN_FUSION_BUFFER");
  std::byte* place = job.buffer;
  for (Job::Part& part : job.parts) {
    if (job.pending[part.request] == nullptr) {
      std::memset(place, 0, part.bytes);
    } else {
      const Request& request = job.request_of(part);
      scale_into(request, place, part.input.data, part.bytes, request.prescale);
    }
    place += part.bytes;
  }
  return Status();
}

Status ResponseRunner::prepare_all_reduce(Job& job) {
  const Request& first = job.first();
  std::size_t bytes = 0;
  for (Job::Part& part : job.parts) {
    bytes += part.bytes;
    if (job.pending[part.request] == nullptr) continue;
    Result<Piece> output = job.output_of(part, job.request_of(part).shapes[part.tensor]);
    if (!output.ok()) return output.status();
    part.output = *output;
  }
  OperationSpec spec{.kind = pg::Kind::kAllReduce, .dtype = first.dtype, .op = first.op};
  if (job.needs_buffer) {
    TACO_RETURN_IF_ERROR(fill_buffer(job, bytes));
    spec.inputs = spec.outputs = {Piece{job.buffer, bytes}};
  } else {
    // In place, though one rank may want its input kept and another not: they make one plan.
    const Job::Part& part = job.parts.front();
    scale_into(first, part.output.data, part.input.data, bytes, first.prescale);
    spec.inputs = spec.outputs = {part.output};
  }
  job.specs.push_back(std::move(spec));
  return Status();
}

Status ResponseRunner::prepare_adasum(Job& job) {
  const Request& first = job.first();
  std::vector<std::size_t> counts;
  std::size_t bytes = 0;
  for (Job::Part& part : job.parts) {
    Result<Piece> output = job.output_of(part, first.shapes[part.tensor]);
    if (!output.ok()) return output.status();
    part.output = *output;
    bytes += part.bytes;
    counts.push_back(part.bytes / kernels::size_of(first.dtype));
  }
  TACO_RETURN_IF_ERROR(fill_buffer(job, 2 * bytes));
  job.adasum.emplace(rank_, world_, first.dtype, std::move(counts), job.buffer, job.buffer + bytes);
  return Status();
}

Status ResponseRunner::prepare_tensors(Job& job) {
  for (std::size_t part = 0; part < job.parts.size(); ++part) {
    switch (job.first().kind) {
      case Kind::kAllGather:
        TACO_RETURN_IF_ERROR(prepare_all_gather(job, part));
        break;
      case Kind::kBroadcast:
        TACO_RETURN_IF_ERROR(prepare_broadcast(job, part));
        break;
      case Kind::kAllToAll:
        TACO_RETURN_IF_ERROR(prepare_all_to_all(job, part));
        break;
      case Kind::kReduceScatter:
        TACO_RETURN_IF_ERROR(prepare_reduce_scatter(job, part));
        break;
      default:
        return Status(Code::kInternal, std::string(name_of(job.first().kind)) + " moves no data");
    }
  }
  return Status();
}

Status ResponseRunner::prepare_all_gather(Job& job, std::size_t index) {
  Job::Part& part = job.parts[index];
  const Request& request = job.first();
  const Shape& shape = request.shapes[part.tensor];
  const std::vector<std::int64_t>& rows = job.response.rows[part.tensor];
  Result<Piece> output = job.output_of(part, with_rows(shape, sum_of(rows)));
  if (!output.ok()) return output.status();
  OperationSpec spec{.kind = pg::Kind::kAllGather, .dtype = request.dtype};
  spec.inputs = {part.input};
  spec.outputs = cut_rows(output->data, rows, bytes_of_row(shape, request.dtype));
  job.specs.push_back(std::move(spec));
  return Status();
}

Status ResponseRunner::prepare_broadcast(Job& job, std::size_t index) {
  Job::Part& part = job.parts[index];
  const Request& request = job.first();
  Result<Piece> output = job.output_of(part, request.shapes[part.tensor]);
  if (!output.ok()) return output.status();
  if (request.root == rank_) {
    scale_into(request, output->data, part.input.data, part.bytes, 1.0);
  }
  OperationSpec spec{.kind = pg::Kind::kBroadcast, .dtype = request.dtype, .root = request.root};
  spec.outputs = {*output};
  job.specs.push_back(std::move(spec));
  return Status();
}

Status ResponseRunner::prepare_all_to_all(Job& job, std::size_t index) {
  Job::Part& part = job.parts[index];
  const Request& request = job.first();
  const Shape& shape = request.shapes[part.tensor];
  const std::size_t row_bytes = bytes_of_row(shape, request.dtype);
  const auto& rows = job.response.rows;
  bool equal = true;
  job.received_splits.clear();
  for (const std::vector<std::int64_t>& sent : rows) {
    job.received_splits.push_back(sent[rank_]);
    equal = equal && std::ranges::all_of(sent, [&](std::int64_t n) { return n == rows[0][0]; });
  }
  Result<Piece> output = job.output_of(part, with_rows(shape, sum_of(job.received_splits)));
  if (!output.ok()) return output.status();
  OperationSpec spec{.kind = pg::Kind::kAllToAll, .dtype = request.dtype};
  spec.inputs = cut_rows(part.input.data, rows[rank_], row_bytes);
  spec.outputs = cut_rows(output->data, job.received_splits, row_bytes);
  spec.equal_splits = equal;
  job.specs.push_back(std::move(spec));
  return Status();
}

Status ResponseRunner::prepare_reduce_scatter(Job& job, std::size_t index) {
  Job::Part& part = job.parts[index];
  const Request& request = job.first();
  const Shape& shape = request.shapes[part.tensor];
  std::vector<std::int64_t> rows(static_cast<std::size_t>(world_));
  for (int rank = 0; rank < world_; ++rank) rows[rank] = share_of_rows(shape[0], rank, world_);
  Result<Piece> output = job.output_of(part, with_rows(shape, rows[rank_]));
  if (!output.ok()) return output.status();
  part.output = *output;
  if (job.needs_buffer && job.buffer == nullptr) {
    std::size_t bytes = 0;
    for (const Job::Part& each : job.parts) bytes += each.bytes;
    TACO_RETURN_IF_ERROR(fill_buffer(job, bytes));
    std::byte* place = job.buffer;
    for (Job::Part& each : job.parts) {
      each.input = {place, each.bytes};
      place += each.bytes;
    }
  }
  OperationSpec spec{.kind = pg::Kind::kReduceScatter, .dtype = request.dtype, .op = request.op};
  spec.inputs = cut_rows(part.input.data, rows, bytes_of_row(shape, request.dtype));
  spec.outputs = {*output};
  job.specs.push_back(std::move(spec));
  return Status();
}

void ResponseRunner::begin(const JobPtr& job, OperationSpec spec) {
  if (!job->status.ok()) return;
  spec.caller_will_wait = job->is_last;
  spec.ended_st = [this, job, inbox = inbox_](const Status& status, Duration) {
    inbox->post([this, job, status] { operation_ended(job, status); });
  };
  ++job->open;
  const Result<OperationPtr> started = data_->start(std::move(spec));
  if (started.ok()) return;
  --job->open;
  job->status = started.status();
  fail(job->status);
}

// True: something has been started.
bool ResponseRunner::exchange_more(const JobPtr& job) {
  const std::optional<Adasum::Exchange> exchange = job->adasum->next();
  if (!exchange) return false;
  const Request& request = job->first();
  OperationSpec spec{
      .kind = pg::Kind::kRecv, .dtype = request.dtype, .root = exchange->from, .tag = job->tag};
  if (exchange->from >= 0) {
    spec.outputs = {exchange->incoming};
    begin(job, spec);
    spec.outputs.clear();
  }
  if (exchange->to >= 0) {
    spec.kind = pg::Kind::kSend;
    spec.root = exchange->to;
    spec.inputs = {exchange->outgoing};
    begin(job, std::move(spec));
  }
  return job->open > 0;
}

void ResponseRunner::operation_ended(const JobPtr& job, const Status& status) {
  --job->open;
  if (!status.ok() && job->status.ok()) {
    job->status = status;
    fail(status);
  }
  if (job->open > 0) return;
  if (job->status.ok() && job->adasum) {
    if (exchange_more(job)) return;
  }
  finish(job);
  start_waiting();
}

// The results of a fused operation go to where their requests want them.
void ResponseRunner::empty_buffer(Job& job) {
  tell_activity(job, "MEMCPY_OUT_FUSION_BUFFER");
  const std::byte* place = job.buffer;
  for (const Job::Part& part : job.parts) {
    if (job.pending[part.request] != nullptr) {
      const Request& request = job.request_of(part);
      scale_into(request, part.output.data, place, part.bytes, request.postscale);
    }
    place += part.bytes;
  }
}

void ResponseRunner::finish(const JobPtr& job) {
  const Request& first = job->first();
  const bool reduces_in_buffer = first.kind == Kind::kAdasum || first.kind == Kind::kAllReduce;
  if (job->status.ok() && job->buffer != nullptr && reduces_in_buffer) {
    empty_buffer(*job);
  } else if (job->status.ok() && first.postscale != 1.0) {
    for (const Job::Part& part : job->parts) {
      scale_into(first, part.output.data, part.output.data, part.output.bytes, first.postscale);
    }
  }
  if (std::exchange(job->buffer, nullptr) != nullptr) buffer_->give();
  running_.erase(job);
  if (Listener* listener = owner_.listener()) listener->ended(set_, job->response, monotonic_now());
  owner_.requests_ended(job->pending,
                        {.status = job->status, .received_splits = job->received_splits});
}

void ResponseRunner::tell_activity(const Job& job, const char* what) {
  if (Listener* listener = owner_.listener()) {
    listener->activity(set_, job.response, what, monotonic_now());
  }
}

}  // namespace taco::pg::controller
