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
