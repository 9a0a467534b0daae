# cycles.sh CYCLES ATTACHES PASSES: domains with an interface and a disk come and go, such devices of a running guest come and
# go, domains with a device of the machine come and go; nothing adds up.
#
# Two times in twenty the stock scripts plug the devices in. They start a hundred programs, which under software emulation take
# most of the time; otherwise the small ones do it.
cycles=${1:-2}
attaches=${2:-2}
passes=${3:-2}
. /xen/driving.sh
truncate -s 8M /tmp/disk /tmp/more /tmp/plugged
losetup /dev/loop7 /tmp/plugged

# vif NUMBER LAST, disk NUMBER VDEV FILE: configurations of the devices of a cycle
is_stock() { [ $(($1 % 20)) -lt 2 ]; }
vif() { echo "mac=00:16:3e:00:00:0$2,bridge=xenbr0$(is_stock $1 || echo ,script=vif-plug)"; }
disk() {
	local what="script=disk-plug,target=/dev/loop7"
	! is_stock $1 || what=target=$3
	echo "format=raw,vdev=$2,access=rw,$what"
}

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

# Every other domain boots and uses its devices, the others are destroyed as they were built.
built() { xl create -p /tmp/$1.cfg > /tmp/$1.create 2>&1 || { cat /tmp/$1.create; return 1; }; }
no_devices() { wait_for 20 eval "! ls /sys/class/net | grep -q vif && ! losetup -a | grep -q $1"; }
use_devices() {
	in_guest $1 40 'job_address 3; modprobe xen-blkfront; wait_for 10 test -b /dev/xvda; dd if=/dev/zero of=/dev/xvda bs=64k count=16 oflag=direct 2> /dev/null && ping -c 1 -W 5 10.9.0.2 > /dev/null'
}
domain() {
	config c1 "vif=['$(vif $1 3)']" "disk=['$(disk $1 xvda /tmp/disk)']"
	if [ $(($1 % 2)) = 0 ]; then boot c1 && use_devices c1; else built c1; fi || return 1
	xl destroy c1 && gone c1 && no_devices /tmp/disk
}
# The first ones make what is made once.
check the-first-domains eval 'domain 0 && domain 1 && domain 2'
remember
check $cycles-domains-come-and-go repeat $cycles 20 domain

config c2
check create boot c2 || exit
attach() {
	xl block-attach c2 $(disk $1 xvdb /tmp/more) && xl network-attach c2 $(vif $1 7 | tr , ' ') || return 1
	in_guest c2 30 'modprobe xen-blkfront; modprobe xen-netfront; wait_for 10 test -b /dev/xvdb && wait_for 10 test -e /sys/class/net/eth0 && dd if=/dev/xvdb of=/dev/null bs=64k count=4 2> /dev/null' || return 1
	xl block-detach c2 xvdb && xl network-detach c2 0 && no_devices /tmp/more &&
		in_guest c2 20 'wait_for 10 test ! -b /dev/xvdb && wait_for 10 test ! -e /sys/class/net/eth0'
}
check the-first-devices eval 'attach 0 && attach 2'
remember
check $attaches-devices-come-and-go repeat $attaches 50 attach
check destroy eval 'xl destroy c2 && gone c2'

# A second NIC, with messages, behind the IOMMU. (Nobody is at the other end of its wire.)
modprobe xen-pciback
nic=$(devices device 0x10d3)
check assignable-add xl pci-assignable-add $nic
driving c3 "pci=['$nic,permissive=1']"
drive() { in_guest c3 90 'job_pci && modprobe e1000e && wait_for 20 test -e /sys/class/net/eth0 && ifconfig eth0 10.9.1.1 up && grep -q eth0 /proc/interrupts'; }
is_master() { [ $(($(od -An -tu2 -j4 -N2 /sys/bus/pci/devices/$nic/config) & 4)) != 0 ]; }
pass() {
	if [ $(($1 % 2)) = 0 ]; then
		boot c3 && drive && in_use_by $(xl domid c3) || return 1
	else
		built c3 || return 1
	fi
	xl destroy c3 && gone c3 && ! is_master
}
# The domain has its interrupts and its part of the IOMMU, or the comparison means nothing. (Stock Xen does not say.)
in_use_by() {
	xl info | grep -q '^xen_extra.*tandem' || return 0
	xl debug-keys u
	xl dmesg | grep "use: d$1: " | tail -n 1 | tee /tmp/pass
	grep -q ' [1-9][0-9]* of them bound, 1 functions, tables for devices' /tmp/pass
}
check the-first-with-a-device eval 'pass 0 && pass 1'
remember
check $passes-with-a-device-come-and-go repeat $passes 10 pass
check assignable-remove xl pci-assignable-remove $nic
check no-access-was-stopped no_dma_stopped
if xl info | grep -q '^xen_extra.*tandem'; then check frames-agree audit; fi
