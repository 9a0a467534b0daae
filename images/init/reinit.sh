# How long a driver takes until its device works again: sourced by init.sh.

# reinit DRIVER: by the kernel's log, the last time: from the driver's first line, or the device's if it came later, until the link is
# up, or the disk there. The same lines on the bare machine and in a driver domain.
job_reinit() {
	local begins ends device='pci 0000:[0-9a-f:.]*: \\['
	case $1 in
	e1000 | e1000e) begins="$1: Intel" ends='NIC Link is Up' ;;
	8139cp) begins='8139cp: 8139cp:' ends=': link up' ;;
	nvme) begins='nvme nvme[0-9]*: pci function' ends='nvme nvme[0-9]*: .*queues' ;;
	ahci) begins='ahci 0000:[^ ]* version' ends='Attached SCSI disk' ;;
	esac
	dmesg | sed -n 's/^\[ *\([0-9.]*\)\] /\1 /p' | awk -v begins="$begins|$device" -v ends="$ends" '
		$0 ~ begins { from = $1; to = "" }
		$0 ~ ends && to == "" { to = $1 }
		END { if (from != "" && to != "") printf "reinit %d\n", (to - from) * 1000 }'
}

# reinits:DRIVER:COUNT: on the bare machine, where the driver is loaded so often
job_reinits() {
	local driver=$1 n
	[ $driver != ahci ] || modprobe sd_mod
	for n in $(seq $2); do
		modprobe $driver || { say "reinits FAIL modprobe $driver"; return; }
		case $driver in
		nvme) wait_for 20 test -b /dev/nvme0n1 ;;
		ahci) wait_for 20 test -b /dev/sda ;;
		*) wait_for 20 ifconfig eth0 10.9.0.2 netmask 255.255.255.0 up && wait_for 20 grep -q 1 /sys/class/net/eth0/carrier ;;
		esac || { say "reinits FAIL $driver finds no device, or it does not come up"; return; }
		# What the kernel says last may come a moment later.
		sleep 1
		say "bare $(job_reinit $driver)"
		rmmod $driver
	done
}
