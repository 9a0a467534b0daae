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

# What the loads of dying.sh have come to: how often they had to wait, lost connections, wrong blocks or datagrams, errors, datagrams without an answer.
net_state() {
	echo $(grep -c ^gap /tmp/load) $(grep -c FAIL /tmp/ended) $(cat /tmp/load /tmp/ended | grep -cE "^(tcp )?wrong") 0 \
		$(tail -n 40 /tmp/load | awk '/^counts/ { n = $2 - $3 } END { print n + 0 }')
}
disk_state() { echo $(grep -c ^gap /tmp/load) 0 $(grep -c ^wrong /tmp/load) $(grep -cE "^error|FAIL" /tmp/load) 0; }
# What has to become more: the last ping, and where each stream is; what was read and written. All that guests do here the driver domain waits for.
net_progress() { tail -q -n 1 /tmp/pings /tmp/stream.* | sed 's/.*seq=\([0-9]*\).*/\1/; s/^tcp at //; s/.*[^0-9].*/0/'; }
disk_progress() { awk '{ print $1, $5 }' /sys/block/xvda/stat; }

# goes_on KIND SECONDS: by then all is more that has to be; the state at the end
goes_on() {
	local from=$($1_progress) until=$(($(cut -d. -f1 /proc/uptime) + $2)) now
	until now=$($1_progress) && more $from -- $now; do
		[ $(cut -d. -f1 /proc/uptime) -lt $until ] || { echo "stuck: was" $from, is $now, state $($1_state); return 1; }
		usleep 200000
	done
	echo "state $($1_state)"
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
