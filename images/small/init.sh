#!/bin/busybox sh
# A small driver domain's first and only script. What to do comes on the kernel's command line: tandem.do=JOB+JOB+..., the last of them keep. The
# shell runs busybox's programs by itself, so there are no links to them.
/bin/busybox mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
echo 5 > /proc/sys/kernel/printk

say() { echo "TANDEM: $*"; }

# wait_for SECONDS COMMAND...: until the command succeeds
wait_for() {
	tries=$(($1 * 10))
	shift
	while ! "$@" > /dev/null 2>&1; do
		tries=$((tries - 1))
		[ $tries -gt 0 ] || return 1
		usleep 100000
	done
}

# device DRIVER: the function that the toolstack gave us, and its driver
device() {
	modprobe xen-pcifront && wait_for 20 sh -c 'ls /sys/bus/pci/devices | grep -q .' || { say "small FAIL no device"; return 1; }
	modprobe "$1" || { say "small FAIL no driver $1"; return 1; }
}

# bridge DRIVER: the NIC is in the bridge xenbr0
bridge() {
	modprobe bridge && device "$1" && wait_for 10 test -e /sys/class/net/eth0 || { say "small FAIL no interface from $1"; return 1; }
	brctl addbr xenbr0
	brctl setfd xenbr0 0
	brctl addif xenbr0 eth0
	ip link set eth0 up
	ip link set xenbr0 up
}

# switch:DRIVER: the NIC and our own interface at the hypervisor's switch are in one bridge
job_switch() {
	bridge "$1" || return
	modprobe xen-netfront && wait_for 10 test -e /sys/class/net/eth1 || { say "small FAIL no interface at the switch"; return; }
	brctl addif xenbr0 eth1
	ip link set eth1 up
	# What is joined of segments that the NIC receives is not more than eth1 sends whole.
	joins eth0 17000
	wait_for 15 grep -q 1 /sys/class/net/eth0/carrier
	say "small ok switch $1"
}

# vifs:DRIVER: the NIC is in a bridge, and guests' interfaces join it
job_vifs() {
	bridge "$1" && modprobe xen-netback || return
	say "small ok vifs $1"
}

# disk:nvme, disk:ahci: guests' disks are this one, or its partitions
job_disk() {
	case $1 in
	nvme) node=/dev/nvme0n1 ;;
	ahci) node=/dev/sda; modprobe sd_mod ;;
	esac
	device "$1" && wait_for 30 test -b $node || { say "small FAIL no disk from $1"; return; }
	modprobe xen-blkback || { say "small FAIL no back end"; return; }
	say "small ok disk $1"
}

# spare: memory of the kernel's image that nobody uses here becomes free: patches of AMD's microcode, which a guest never loads, and the types of
# the kernel's C, of which nobody is left to read them
spare() {
	set -- $(awk '
		$3 == "amd_ucode_patch" { first = $1; next }
		first && !end && $1 != first { end = $1 }
		$3 == "__start_BTF" { types = $1 }
		$3 == "__stop_BTF" { over = $1 }
		END { print first, end, types, over }' /proc/kallsyms)
	insmod /spare.ko zero=0x$1,0x$2 data=0x$3,0x$4 && rmmod spare
	rm /spare.ko
}

# keep:MIB: all is loaded that will be. Files that nobody needs go, the shell becomes plug, and memory over so much is given back to the
# hypervisor. It is the last job.
job_keep() {
	# As long as Linux has no random numbers it looks each two seconds whether it has. Whoever asks for one has it make some.
	head -c 1 /dev/random > /dev/null
	spare
	stty -echo
	rm -r /lib /sbin /init /bin/busybox /bin/joins
	echo 3 > /proc/sys/vm/drop_caches
	exec /bin/plug $1
}

for word in $(cat /proc/cmdline); do
	case $word in tandem.do=*) jobs=${word#tandem.do=} ;; esac
done
IFS=+
for job in $jobs; do
	IFS=:
	set -- $job
	IFS=' '
	name=$1
	shift
	job_$name "$@"
done
