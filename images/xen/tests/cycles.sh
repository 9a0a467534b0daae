# cycles.sh CYCLES ATTACHES: domains with devices come and go, devices of a running guest come and go; nothing adds up.
cycles=${1:-2}
attaches=${2:-2}
ports() { lsevtchn 0 | wc -l; }
truncate -s 8M /tmp/disk
config c1 'vif=["mac=00:16:3e:00:00:03,bridge=xenbr0"]' 'disk=["format=raw,vdev=xvda,access=rw,target=/tmp/disk"]'

use_devices() {
	in_guest $1 40 'job_address 3; modprobe xen-blkfront; wait_for 10 test -b /dev/xvda; dd if=/dev/zero of=/dev/xvda bs=64k count=16 oflag=direct 2> /dev/null && ping -c 1 -W 5 10.9.0.2 > /dev/null'
}
# One cycle: every other domain boots and uses its devices, the others are destroyed as they were built.
cycle() {
	if [ $(($1 % 2)) = 0 ]; then
		boot c1 && use_devices c1 || return 1
	else
		xl create -p /tmp/c1.cfg > /tmp/c1.create 2>&1 || { cat /tmp/c1.create; return 1; }
	fi
	xl destroy c1 && gone c1 && wait_for 20 eval '! ls /sys/class/net | grep -q vif && ! losetup -a | grep -q /tmp/disk'
}
settled() { # the same as before, give or take nothing
	for i in 1 2 3 4 5 6 7 8 9 10; do
		[ "$(ports)" = "$ports" ] && [ "$(free_kib)" -ge "$free" ] && return
		sleep 1
	done
	echo "free $free KiB before, $(free_kib) now; event channels $ports before, $(ports) now"
	return 1
}

# The first two make what is made once.
cycle 0 && cycle 1
free=$(free_kib)
ports=$(ports)
cycles() {
	for n in $(seq $cycles); do
		cycle $n || { echo "in cycle $n"; return 1; }
		[ $((n % 20)) = 0 ] && echo "TANDEM: $n cycles, free $(free_kib) KiB, ports $(ports)" > /dev/console
	done
	settled
}
check $cycles-domains-come-and-go cycles

config c2
check create boot c2 || exit
attach_cycle() {
	truncate -s 8M /tmp/more
	xl block-attach c2 format=raw,vdev=xvdb,access=rw,target=/tmp/more && xl network-attach c2 mac=00:16:3e:00:00:07 bridge=xenbr0 || return 1
	in_guest c2 30 'modprobe xen-blkfront; modprobe xen-netfront; wait_for 10 test -b /dev/xvdb && wait_for 10 test -e /sys/class/net/eth0 && dd if=/dev/xvdb of=/dev/null bs=64k count=4 2> /dev/null' || return 1
	xl block-detach c2 xvdb && xl network-detach c2 0 && wait_for 20 eval '! ls /sys/class/net | grep -q vif && ! losetup -a | grep -q /tmp/more' &&
		in_guest c2 20 'wait_for 10 test ! -b /dev/xvdb && wait_for 10 test ! -e /sys/class/net/eth0'
}
attach_cycle
free=$(free_kib)
ports=$(ports)
attaches() {
	for n in $(seq $attaches); do
		attach_cycle || { echo "in cycle $n"; return 1; }
		[ $((n % 50)) = 0 ] && echo "TANDEM: $n attaches, free $(free_kib) KiB, ports $(ports)" > /dev/console
	done
	settled
}
check $attaches-devices-come-and-go attaches
xl destroy c2
