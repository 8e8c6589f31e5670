# Shows how far a compilation is, from ninja's lines "[43/120] ..." in its log: a bar that moves on
# a terminal, and elsewhere a line every ten seconds (PROGRESS_EVERY=10).
PROGRESS_EVERY=${PROGRESS_EVERY:-10}
readonly BAR_CELLS=10

# files_compiled LOG: "43 120", from the last line that says so; nothing where there is none.
files_compiled() {
  tail -c 65536 "$1" | grep -aoE '^ *\[[0-9]+/[0-9]+\] ' | tail -n 1 | tr -cs '0-9\n' ' '
}

# progress_text FILES ALL SECONDS: "[###.......] 43/120 files, about 40 s left"; SECONDS is how long
# the first FILES took.
progress_text() {
  local filled=$(($1 * BAR_CELLS / $2)) bar='' left=''
  while [ ${#bar} -lt "$BAR_CELLS" ]; do
    [ ${#bar} -lt "$filled" ] && bar+='#' || bar+='.'
  done
  # The first files are the longest, and say little about the others.
  [ "$3" -ge 3 ] && [ $(($1 * 4)) -ge "$2" ] &&
    left=", about $(($3 * ($2 - $1) / $1)) s left"
  printf '[%s] %d/%d files%s' "$bar" "$1" "$2" "$left"
}

# follow PID NAME LOG: until that process ends; the cursor stays behind NAME.
follow() {
  local pid=$1 name=$2 log=$3 terminal='' pace=$PROGRESS_EVERY drawn='' tick
  local files all before='' since=0 shown=$SECONDS looked=$SECONDS
  [ -t 1 ] && [ "${TERM:-dumb}" != dumb ] && terminal=yes && pace=1
  exec {tick}<> <(:) # nothing ever comes: reading from it is a sleep without a process
  while kill -0 "$pid" 2>/dev/null; do
    read -r -t 0.1 -u "$tick" || true
    [ "$SECONDS" -gt "$looked" ] || continue
    looked=$SECONDS
    read -r files all < <(files_compiled "$log") || continue
    [ "$all" = "$before" ] || { before=$all && since=$((SECONDS - 1)); }
    [ $((SECONDS - shown)) -ge "$pace" ] || continue
    shown=$SECONDS drawn=yes
    [ -n "$terminal" ] && printf '\r\e[K%-34s' "$name ..." || printf '\n  '
    progress_text "$files" "$all" $((SECONDS - since))
  done
  exec {tick}>&-
  [ -n "$drawn" ] || return 0
  [ -n "$terminal" ] && printf '\r\e[K' || printf '\n'
  printf '%-34s' "$name ..."
}
