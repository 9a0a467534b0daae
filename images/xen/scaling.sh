# scaling.sh COUNT MOST: guests at the hypervisor's switch, whose way out is the twin of e1000: one, two, four and so on up to MOST of them
# send COUNT datagrams each at one time, then receive as many. All of them are there from the beginning; who has nothing to do sleeps. Meanwhile
# dom0 sleeps, too: commands go to the guests' consoles.
count=$1
most=$2
class=0x020000 driver=e1000
. /xen/loads.sh
switches mirror
owner driver $(xl domid driver)
for ((n = 0; n < most; n++)); do
	config many$n 'tsc_mode="native"' "vif=['mac=00:16:3e:00:01:$(printf %02x $n),backend=net']"
	boot many$n > /tmp/out 2>&1 || quit "no guest $n"
	in_guest many$n 40 "job_address $((n + 10))" > /tmp/out 2>&1 || quit "guest $n has no device"
	owner guest $(xl domid many$n)
done
in_guest many0 10 'job_modules guest'
sh -c '. /load.sh; job_modules dom0'
for ((n = 0; n < most; n++)); do in_guest many$n 10 'traffic arm' > /tmp/out 2>&1; done
say "loads guest"
# together NAME WAY GUESTS: so many guests do that, and number 0 says what it was
together() {
	local n tty log tries
	for ((n = 0; n < $3; n++)); do
		tty=$(xenstore-read /local/domain/$(xl domid many$n)/console/tty)
		echo "$1 traffic together $2 $1 1514 $count $3 $n > /tmp/load 2>&1; cat /tmp/load" > $tty
	done
	# Longer than all of it, so that dom0 does nothing in between.
	for tries in 1 2 3 4 5 6; do
		sleep 10
		for ((n = 0; n < $3; n++)); do
			grep -q "TANDEM: did $1 " $logs/guest-many$n.log || continue 2
		done
		break
	done
	for ((n = 0; n < $3; n++)); do
		log=$logs/guest-many$n.log
		grep -q "TANDEM: did $1 " $log || quit "guest $n of $3 does not $2"
		grep -a 'load FAIL' $log
	done
	tr -d '\r' < $logs/guest-many0.log | grep -a "TANDEM: load $1 "
}
for ((guests = 1; guests <= most; guests *= 2)); do
	for way in send receive; do together $way-$guests $way $guests; done
done
