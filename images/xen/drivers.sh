# drivers.sh: memory of a small driver domain of each kind, and what 0, 1, 2, 4 and 8 of them do while nobody wants anything of them; in how much of it
# those of each kind work, idle and under load; and what it takes to have driver domains noted, so that they can be rolled back
. /xen/loads.sh
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
modprobe xen-pciback
seconds=20
# starts NAME JOB FUNCTION: it is there, and has given back what it is to. So many KiB it had at first: $at_boot.
starts() {
	[ -e /sys/bus/pci/drivers/pciback/$3 ] || xl pci-assignable-add $3 > /tmp/out 2>&1 || quit "$3 cannot leave dom0"
	small $1 $2 "pci=['$3,permissive=1']" 'tsc_mode="native"'
	mkdir -p $logs
	: > $(log_of $1)
	xl create -p /tmp/$1.cfg > /tmp/out 2>&1 || quit "$1 cannot be made"
	at_boot=$(($(held $1) * 4))
	xl unpause $1
	serving $1 > /tmp/out 2>&1 || quit "$1 does not come up"
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
nvme=$(devices class 0x0108)
ahci=$(devices class 0x0106 | grep -v ':1f\.')
traffic arm
for kind in nvme ahci; do
	starts disk disk:$kind ${!kind}
	memory $kind disk
	xl destroy disk && gone disk || quit "a driver domain stays"
done
rest 0
n=0
for function in $(devices device 0x10d3); do
	n=$((n + 1))
	starts d$n vifs:e1000e $function
	case $n in
	1) memory e1000e d1; rest 1; e1000e_at_boot=$at_boot ;;
	2 | 4 | 8) rest $n ;;
	esac
done
for m in $(seq 2 $n); do xl destroy d$m && gone d$m || quit "a driver domain stays"; done

# One of each kind at the same time, and a guest that has its network and two disks from them. What they touch is seen between the same marks.
for kind in nvme ahci; do
	starts $kind disk:$kind ${!kind}
	eval ${kind}_at_boot=$at_boot
done
# quiet NAME [contents]: nobody wants anything of them
quiet() {
	sleep 5
	idle $seconds $2
	say "load all/$1 units=$seconds"
}
# loads COMMAND...: the guest does that, and says what it has done
loads() {
	in_guest loaded 900 "$*" > /tmp/out 2>&1 || quit "the guest's load ends badly: $1 $2"
	grep -ao 'TANDEM: load .*' /tmp/out || quit "the guest says nothing of its load: $1 $2"
}
quiet idle
behind loaded d1 3 'memory=256' "disk=['format=raw,vdev=xvda,access=rw,backend=nvme,target=/dev/nvme0n1','format=raw,vdev=xvdb,access=rw,backend=ahci,target=/dev/sda']" 'tsc_mode="native"'
boot loaded > /tmp/out 2>&1 || quit "no guest"
plugged loaded > /tmp/out 2>&1 || quit "the guest is not plugged in"
in_guest loaded 90 'job_address 3 && modprobe xen-blkfront && wait_for 60 test -b /dev/xvda && wait_for 60 test -b /dev/xvdb && traffic arm' > /tmp/out 2>&1 ||
	quit "the guest has no devices"
loads traffic put e1000e/tcp-send 480000
loads traffic get e1000e/tcp-receive 180000
for kind in nvme:xvda ahci:xvdb; do
	for way in read write; do loads blocks ${kind%:*}/random-$way /dev/${kind#*:} $way random 4096 80000 32; done
done
quiet connected contents
for kind in e1000e:d1 nvme:nvme ahci:ahci; do
	name=${kind#*:} kind=${kind%:*} at_boot=${kind%:*}_at_boot
	owner $kind $(xl domid $name)
	say "beside $kind boot_kib=${!at_boot} held_kib=$(($(held $name) * 4))"
done
for name in loaded d1 nvme ahci; do xl destroy $name && gone $name || quit "$name stays"; done

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
notes one nvme standby_disk $nvme
notes two ahci standby_disk $ahci
