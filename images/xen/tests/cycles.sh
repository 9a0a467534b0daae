# cycles.sh CYCLES PASSES: domains with an interface and a disk come and go, then domains with a device of the machine; nothing
# adds up.
cycles=${1:-2}
passes=${2:-2}
. /xen/driving.sh
. /xen/cycling.sh

# Every other domain boots and uses its devices, the others are destroyed as they were built.
built() { xl create -p /tmp/$1.cfg > /tmp/$1.create 2>&1 || { cat /tmp/$1.create; return 1; }; }
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
remember_frames
check $cycles-domains-come-and-go repeat $cycles 20 domain

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
