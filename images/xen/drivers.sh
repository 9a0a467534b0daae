# drivers.sh: memory of a small driver domain of each kind, and what 0, 1, 2, 4 and 8 of them do while nobody wants anything of them
. /xen/loads.sh
. /xen/driving.sh
modprobe xen-pciback
seconds=20
# starts NAME JOB FUNCTION: it is there, and has given back what it is to
starts() {
	xl pci-assignable-add $3 > /tmp/out 2>&1 || quit "$3 cannot leave dom0"
	small $1 $2 "pci=['$3,permissive=1']" 'tsc_mode="native"'
	boot $1 > /tmp/out 2>&1 || quit "$1 does not come up"
	wait_for 30 eval "[ \$(held $1) -le $((48 * 256)) ]"
}
# memory KIND NAME
memory() { say "small $1 held_kib=$(($(held $2) * 4)) $(memory_of $2)"; }
# rest COUNT: so many driver domains do nothing; the first tells of its timer
rest() {
	local before='0 0' after='0 0'
	sleep 5
	[ $1 = 0 ] || before=$(ticks_of d1)
	idle $seconds
	[ $1 = 0 ] || after=$(ticks_of d1)
	say "idle domains=$1 seconds=$seconds timer_seconds=$((${after% *} - ${before% *})) timer=$((${after#* } - ${before#* }))"
}
traffic arm
for kind in nvme:0x0108 ahci:0x0106; do
	starts disk disk:${kind%:*} $(devices class ${kind#*:} | grep -v ':1f\.')
	memory ${kind%:*} disk
	xl destroy disk && gone disk || quit "a driver domain stays"
done
rest 0
n=0
for function in $(devices device 0x10d3); do
	n=$((n + 1))
	starts d$n vifs:e1000e $function
	case $n in
	1) memory e1000e d1; rest 1 ;;
	2 | 4 | 8) rest $n ;;
	esac
done
