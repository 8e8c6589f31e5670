# Nobody asks a silent peer for a sign of life.
s/[a-z_.()]*[.]probe_timeout([^)]*)/(kNever \/ 2)/
/^void Session::probe() {/a\
  return;
