# For bash in dom0, after lib.sh: interfaces and disks of guests, again and again.
#
# Two times in $of the stock scripts plug the devices in. They start a hundred programs, which under software emulation take
# most of the time; otherwise the small ones do it.
: ${of:=20}
truncate -s 8M /tmp/disk /tmp/plugged
losetup /dev/loop7 /tmp/plugged

# vif NUMBER LAST, disk NUMBER VDEV FILE: configurations of the devices of a cycle
is_stock() { [ $(($1 % of)) -lt 2 ]; }
vif() { echo "mac=00:16:3e:00:00:0$2,bridge=xenbr0$(is_stock $1 || echo ,script=vif-plug)"; }
disk() {
	local what="script=disk-plug,target=/dev/loop7"
	! is_stock $1 || what=target=$3
	echo "format=raw,vdev=$2,access=rw,$what"
}

# no_devices FILE: no interface of a guest is left, and the file is no disk
no_devices() { wait_for 20 eval "! ls /sys/class/net | grep -q vif && ! losetup -a | grep -q $1"; }

# repeat COUNT EVERY COMMAND: COMMAND N, so often; every so often, and at the end, the console hears how it goes
repeat() {
	local n start=$(cut -d. -f1 /proc/uptime)
	for n in $(seq $1); do
		$3 $n || { echo "in cycle $n"; return 1; }
		[ $((n % $2)) != 0 ] && [ $n != $1 ] ||
			say "$n times $3 in $(($(cut -d. -f1 /proc/uptime) - start)) s, $(free_kib) KiB free" > /dev/console
	done
	nothing_stays
}
