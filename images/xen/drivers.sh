# drivers.sh: memory of a small driver domain of each kind, and what 0, 1, 2, 4 and 8 of them do while nobody wants anything of them; and what it takes
# to have driver domains noted, so that they can be rolled back
. /xen/loads.sh
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
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
for m in $(seq $n); do xl destroy d$m && gone d$m || quit "a driver domain stays"; done

# notes SERVICE DRIVER JOB FUNCTION [LINE]: one more driver domain, of the usual kind, is noted when it has booted; what that takes beside the ones before is said
mkdir -p $logs /etc/tandem
notes() {
	local name=dd-$1 kind=disk told
	[ $1 != net ] || kind=net
	driving $name "pci=['$4,permissive=1']" "extra='$kernel_args oops=panic iommu=soft swiotlb=4096 tandem.do=$3:$2+drive'" "${@:5}"
	printf '[service.%s]\nkind = "%s"\ndriver-domain = "%s"\n[service.%s.supervise]\nconfig = "/tmp/%s.cfg"\nsnapshot = true\n' $1 $kind $name $1 $name >> /etc/tandem/tandemd.toml
	[ ! -e /tmp/tandemd.pid ] || daemon_ends > /tmp/out 2>&1 || quit "tandemd does not end"
	daemon_starts > /tmp/out 2>&1 || quit "tandemd does not start"
	wait_for 200 grep "^$1: .* can be rolled back" $daemon_log > /tmp/out 2>&1 || quit "$name is not noted"
	told=$(sed -n "s/^$1: .* takes \([0-9]*\) MiB, beside \([0-9]*\) MiB .*/takes_mib=\1 found_mib=\2/p" $daemon_log)
	say "noted $2 $told"
}
notes net e1000e standby $(devices device 0x10d3 | head -n 1) "$(plug 2)"
notes one nvme standby_disk $(devices class 0x0108)
notes two ahci standby_disk $(devices class 0x0106 | grep -v ':1f\.')
