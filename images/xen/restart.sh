# restart.sh DRIVER WAY MODE COUNT CAUSE...: a driver domain dies COUNT times by each cause in turn, under a guest's loads, and comes back. Of
# each time a line says what the guest has seen of it:
#
#   crash CAUSE outage=MS from=MS lost=N wrong=N errors=N resent=N reinit=MS | what tandemd says of it
#
# outage and from are `none` if none was as long as what the load calls a gap. CAUSE is one of dying.sh's; resent is of the segments that the guest's TCP has sent since the line before, if the driver domain is the way out.
#
# WAY: fresh, standby if another one waits, kept if moreover the link is kept, snapshot if it is rolled back, or turns if both. MODE: vm, or twin-mirror if the way out is its driver's twin.
driver=$1 way=$2 mode=$3 count=$4
shift 4
keeps_link=
[ $way != kept ] || way=standby keeps_link=1
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
guests=u1
story=restart
rest_ms=50
. /xen/dying.sh
mib=4
# A failure does not come sooner after the last one.
apart_s=10

disk_loads() { in_guest $1 20 "diskload /dev/xvda $mib $mib > /tmp/load 2>&1 &"; }
disk_ends() {
	check all-blocks-are-right said 'disk ok' u1 200 "killall diskload; wait_for 180 grep '^disk' /tmp/load; tail -n 1 /tmp/load"
	# As the host wants to find it.
	check the-disk-is-right said 'disk ok' u1 200 "disktest /dev/xvda $mib 2"
	check the-guest-saw-no-error no_disk_errors
}

# restarted CAUSE SEED: it has died once, and what the guest has seen of it is told
restarted() {
	local gap reinit= segments=
	must 'the guest does not say what it has seen' states before "state $kind"
	died $1 $2
	must 'the guest does not say when nothing came' in_guest u1 20 "grep ^gap /tmp/load | tail -n +$(($(total before 1) + 1)) | sort -n -k 3 | tail -n 1"
	gap=($(sed -n 's/^gap //p' /tmp/quit))
	[ $kind != net ] || segments=$(resent)
	[ $1 = twind ] || reinit=$(in_guest dd 20 "job_reinit $driver" | sed -n 's/^reinit //p')
	say "crash $1 outage=${gap[1]:-none} from=${gap[0]:-none} lost=$(seen 2) wrong=$(seen 3) errors=$(seen 4) resent=${segments:+$((segments - told))} reinit=$reinit | $line"
	told=${segments:-$told}
}
# resent: so many segments the guest has sent again by now. The last line of its kind has the figures.
resent() { in_guest u1 20 "grep ^Tcp: /proc/net/snmp" | tr -d '\r' | awk '/^Tcp: [0-9]/ { print $13 }'; }
seen() { echo $(($(total now $1) - $(total before $1))); }
daemon_has() { say "daemon $1 files=$(daemon_files) kib=$(sed -n 's/VmRSS:[ \t]*\([0-9]*\).*/\1/p' /proc/$(cat /tmp/tandemd.pid)/status)"; }

${kind}_machine
waits 1
${kind}_loads u1 put get
must 'the loads do not begin' goes_on
failures=0
# Segments that were told of.
told=0
for n in $(seq $count); do
	for cause in "$@"; do
		at=$(now_s)
		restarted $cause $((n * 97 + failures))
		[ $failures != 1 ] || daemon_has first
		# A twind that ends takes no driver domain with it.
		[ $cause = twind ] || failures=$((failures + 1))
		waits $((failures + 1))
		past=$(($(now_s) - at))
		[ $past -ge $apart_s ] || sleep $((apart_s - past))
	done
done
daemon_has last
# What came when: of all of it so much that a picture shows.
in_guest u1 60 "grep -m 1 -A 30 '^bins' /tmp/load" | sed -n 's/^bins /arrivals /p' | while read -r line; do say "$line"; done
${kind}_ends
dying_ends "$@"
say "restart ok"
