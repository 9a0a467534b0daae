# Shares, caps and wake-ups of guests that compete for one CPU. Meant for a machine whose time is counted in instructions,
# so that other work on the host does not matter; the hypervisor's own figures (debug key r) are to the nanosecond.
figures() { xl dmesg -c > /dev/null; xl debug-keys r; xl dmesg > /tmp/figures; }
# ran NAME, wakes NAME, late NAME: of the guest's first vCPU, by the last figures
field_of() { sed -n "s/.* d$(xl domid $1)v0: $2.*/\1/p" /tmp/figures; }
ran() { field_of $1 'weight .* ran \([0-9]*\) ns'; }
wakes() { field_of $1 '\([0-9]*\) wakes'; }
late() { field_of $1 '[0-9]* wakes, \([0-9]*\) of them late'; }
# near WANTED GOT PERMILLE
near() { awk "BEGIN { d = ($2 - $1) / $1 * 1000; if (d < 0) d = -d; exit !(d <= $3) }"; }
# What a check measured, for the log; `check` keeps what it prints to itself.
note() { echo "$*" > /tmp/note; }
measured() { check "$@"; say "measured $(cat /tmp/note)"; }
tell() { echo "s$2 $3" > $(xenstore-read /local/domain/$(xl domid $1)/console/tty); }

for n in 1 2 4; do
	config busy$n 'memory=128'
	check create-$n boot busy$n || exit
	xl sched-credit2 -d busy$n -w $((n * 256))
done
for n in 1 2 4; do tell busy$n 1 'while :; do :; done'; done
sleep 2

shares() {
	local n sum=0 a b
	figures
	for n in 1 2 4; do eval "a$n=$(ran busy$n)"; done
	sleep 14
	figures
	for n in 1 2 4; do eval "b$n=$(($(ran busy$n) - a$n))"; sum=$((sum + b$n)); done
	echo "ran $b1 $b2 $b4 ns"
	note "shares $((b1 * 1000 / sum)) $((b2 * 1000 / sum)) $((b4 * 1000 / sum)) of 143 286 571"
	for n in 1 2 4; do eval "near $((sum * n / 7)) \$b$n 30" || return 1; done
}
measured shares-follow-weights-within-3-percent shares

# Beside two that are busy: it sleeps and wakes all the time.
xl destroy busy4
config nap 'memory=128'
check create-a-sleeper boot nap || exit
woken() {
	local before_wakes before_late all slow
	figures
	before_wakes=$(wakes nap)
	before_late=$(late nap)
	in_guest nap 120 'nap 5000 1500' > /tmp/nap || return 1
	figures
	all=$(($(wakes nap) - before_wakes))
	slow=$(($(late nap) - before_late))
	note "wakes $all late=$slow; the guest: $(grep -a -o 'wakes=.*' /tmp/nap)"
	cat /tmp/note
	[ $all -ge 1500 ] && [ $((slow * 100)) -le $all ] && [ "$(sed -n 's/.*p99_us=\([0-9]*\).*/\1/p' /tmp/nap)" -lt 2000 ]
}
measured a-woken-guest-runs-within-50-microseconds-and-answers-within-2-ms woken

capped() {
	local before now start=$(cut -d' ' -f1 /proc/uptime)
	xl destroy busy1
	xl destroy nap
	xl sched-credit2 -d busy2 -c 30
	figures
	before=$(ran busy2)
	start=$(cut -d' ' -f1 /proc/uptime)
	sleep 8
	figures
	now=$(awk "BEGIN { print int(($(cut -d' ' -f1 /proc/uptime) - $start) * 1e9) }")
	note "capped $((($(ran busy2) - before) * 1000 / now)) of 300"
	near $((now * 3 / 10)) $(($(ran busy2) - before)) 50
}
measured a-cap-holds-on-an-idle-machine capped
xl destroy busy2
