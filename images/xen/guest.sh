# A guest's part: sourced by init.sh. The kernel runs these two when the toolstack asks for it.
for end in poweroff reboot; do
	printf '#!/bin/sh\nexec /bin/busybox %s -f\n' $end > /sbin/$end
	chmod 755 /sbin/$end
done

# serve: commands from the console, a line each: a number, then the command. They are run here, so jobs are commands too. The full
# stop ends the status: what the kernel says may come before the end of the line.
job_serve() {
	stty -echo
	say "serving uptime=$(cut -d' ' -f1 /proc/uptime)"
	while read -r number command; do
		eval "$command"
		say "did $number $?."
	done
}

# address:LAST: eth0 is 10.9.0.LAST. The ping is there to have the peer's address resolved: a burst of datagrams to an
# unresolved one is partly dropped by Linux.
job_address() {
	modprobe xen-netfront
	wait_for 10 test -e /sys/class/net/eth0 || return 1
	ifconfig lo 127.0.0.1 up
	ifconfig eth0 10.9.0.$1 netmask 255.255.255.0 up
	wait_for 10 ping -c 1 -W 1 10.9.0.1
}

# state KIND: says what the loads of dying.sh have come to: how often they had to wait, lost connections, wrong blocks or datagrams, errors, datagrams without
# an answer. After hours of loads nobody reads all that they have said again, so not in a subshell, where the counts would be lost.
gaps=0 lost=0 wrong=0 failed=0 hears=
state() {
	local kind=$1 unanswered=0
	[ $hears ] || { : >> /tmp/ended; exec 8< /tmp/load 9< /tmp/ended; hears=yes; }
	set -- $({ cat <&8; cat <&9; } | awk '/^gap/ { g++ } /FAIL/ { l++ } /^(tcp )?wrong/ { w++ } /^error/ { e++ } END { print g + 0, l + 0, w + 0, e + 0 }')
	gaps=$((gaps + $1)) lost=$((lost + $2)) wrong=$((wrong + $3)) failed=$((failed + $4))
	if [ $kind = net ]; then
		unanswered=$(tail -n 40 /tmp/load | awk '/^counts/ { n = $2 - $3 } END { print n + 0 }')
		echo "state $gaps $lost $wrong $failed $unanswered"
	else
		# A load that gives up has no connection to lose.
		echo "state $gaps 0 $wrong $((lost + failed)) 0"
	fi
}
# What has to become more: the last ping, and where each stream is; what was read and written. All that guests do here the driver domain waits for.
net_progress() { tail -q -n 1 /tmp/pings /tmp/stream.* | sed 's/.*seq=\([0-9]*\).*/\1/; s/^tcp at //; s/.*[^0-9].*/0/'; }
disk_progress() { awk '{ print $1, $5 }' /sys/block/xvda/stat; }

# goes_on KIND SECONDS: by then all is more that has to be; the state at the end
goes_on() {
	local from=$($1_progress) until=$(($(cut -d. -f1 /proc/uptime) + $2)) now
	until now=$($1_progress) && more $from -- $now; do
		[ $(cut -d. -f1 /proc/uptime) -lt $until ] || { echo "stuck: was" $from, is $now; state $1; return 1; }
		usleep 200000
	done
	state $1
}
# more NUMBER... -- NUMBER...: each of the second is more
more() {
	local from= n
	while [ $1 != -- ]; do
		from="$from $1"
		shift
	done
	shift
	[ -n "$from" ] || return 1
	for n in $from; do
		[ ${1:-0} -gt $n ] || return 1
		shift
	done
}
