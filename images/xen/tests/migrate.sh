# Guests are saved, restored and moved while a program in them checks their memory, registers and clocks.
mib_free() { xl info | sed -n 's/^free_memory *: *//p'; }

# Where a guest's console goes: one that was moved has kept the log of its first name.
log_of() { [ $logs/guest-$1--incoming.log -nt $logs/guest-$1.log ] && echo $logs/guest-$1--incoming.log || echo $logs/guest-$1.log; }
last_report() { tr -d '\r' < $(log_of $1) | grep -a 'TANDEM: memcheck round=' | tail -n 1; }
part() { echo "$1" | sed -n "s/.* $2=\([0-9.-]*\).*/\1/p"; }
reports() { tr -d '\r' < $(log_of $1) | grep -ac 'TANDEM: memcheck round='; }
more_reports() { [ $(reports $1) -gt $2 ]; }

# How many seconds the clock of a guest is behind dom0's: at least, and at most, for its answer takes its time. It boots on
# ticks, of which it loses some if the machine is busy, so this need not be nothing; but it must stay.
behind() {
	local tty=$(xenstore-read /local/domain/$(xl domid $1)/console/tty) log=$(log_of $1) number=${EPOCHREALTIME/./}
	local from=$EPOCHSECONDS real=
	# As in_guest does it, but nothing else between question and answer: the sooner it is there the more it says.
	echo "$number date +clock=$number=%s=" > $tty || return 1
	until real=$(sed -n "s/.*clock=$number=\([0-9][0-9]*\)=.*/\1/p" $log) && [ -n "$real" ]; do
		[ $((EPOCHSECONDS - from)) -lt 30 ] || return 1
	done
	echo $((from - real)) $((EPOCHSECONDS - real))
}
# The best of some answers: the first that took less than 2 s, or that which took least.
how_far_behind() {
	for try in 1 2 3 4 5 6; do
		behind $1 > /tmp/answer || continue
		awk '{ print $2 - $1, $1, $2 }' /tmp/answer
		awk '{ exit $2 - $1 >= 2 }' /tmp/answer && break
	done | sort -n | head -n 1 | cut -d' ' -f2-
}
clock_is_as_before() {
	how_far_behind $1 > /tmp/now_behind
	awk -v was="$(cat /tmp/behind)" '{ split(was, w, " "); exit !(NF == 2 && $1 <= w[2] + 1 && $2 >= w[1] - 1) }' /tmp/now_behind && return
	echo "its clock was $(cat /tmp/behind) s behind dom0's and is $(cat /tmp/now_behind) s"
	return 1
}
# goes_on NAME ROUND MONOTONIC: it works, later than then, its memory is right, and so is the time of day
goes_on() {
	local before=$(reports $1) last
	wait_for 60 more_reports $1 $((before + 1)) || { echo "$1 says nothing any more"; tail -n 4 $(log_of $1); return 1; }
	last=$(last_report $1)
	echo "before: round $2 at $3; now: $last"
	[ "$(part "$last" wrong)" = 0 ] && [ "$(part "$last" round)" -gt "$2" ] || return 1
	awk "BEGIN { exit !($(part "$last" monotonic) > $3) }" || return 1
	clock_is_as_before $1
}
now_at() { last_report $1 | sed -n 's/.*round=\([0-9]*\) .*monotonic=\([0-9.]*\) .*/\1 \2/p'; }

remember
free=$(mib_free)
config g1 'vcpus=2'
check create boot g1 || exit
# The registers are those of vCPU 0, whose context the toolstack reads and writes even for a domain that only goes on. Nobody
# else may use that vCPU: Linux loads what it has in memory, which is right, when another process used the registers meanwhile.
works() { in_guest g1 20 'for p in /proc/[0-9]*; do taskset -p 2 ${p#/proc/}; done > /dev/null 2>&1; memcheck 24 40 &' && wait_for 60 more_reports g1 2 && how_far_behind g1 > /tmp/behind && [ -s /tmp/behind ]; }
check its-memory-is-checked works || exit
registers=$(grep -qw avx /proc/cpuinfo && echo avx || echo sse)
check its-extended-registers-are-checked eval "last_report g1 | grep ' wrong=0 registers=$registers '"

# `check` runs what it checks in a subshell, so what is to be note_timeed goes to a file.
note_time() { now_at g1 > /tmp/then; }
saved() { note_time; timeout 120 xl save g1 /tmp/g1.save && gone g1; }
check save saved
check save-gives-its-memory-back wait_for 20 eval '[ $(mib_free) -ge $free ]'
restored() { timeout 120 xl restore /tmp/g1.save && rm /tmp/g1.save && goes_on g1 $(cat /tmp/then); }
check restore restored

checkpointed() { note_time; timeout 120 xl save -c g1 /tmp/g1.save && rm /tmp/g1.save && goes_on g1 $(cat /tmp/then); }
check save-and-go-on checkpointed

moved() {
	local id=$(xl domid g1)
	note_time
	timeout 240 xl migrate -s '' g1 'xl migrate-receive' && [ "$(xl domid g1)" != $id ] && goes_on g1 $(cat /tmp/then)
}
check migrate moved
check migrate-again moved

# A target that does not take it: the guest stays, as it was.
refused() { note_time; ! timeout 60 xl migrate -s '' g1 false && goes_on g1 $(cat /tmp/then); }
check migrate-to-nowhere refused

dumped() {
	note_time
	timeout 120 xl dump-core g1 /tmp/g1.core && [ $(stat -c %s /tmp/g1.core) -gt $((128 << 20)) ] || return 1
	rm /tmp/g1.core
	goes_on g1 $(cat /tmp/then)
}
check dump-core dumped
check destroy eval 'xl destroy g1 && gone g1'
check nothing-stays nothing_stays
