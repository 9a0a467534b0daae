# ahci.sh MIB: a guest's disk is one of an AHCI controller, served by dom0's blkback; then the controller is put aside, and a
# NIC, neither of which has a function-level reset.
mib=${1:-8}
. /xen/driving.sh
modprobe ahci
modprobe sd_mod
wait_for 10 test -b /dev/sda
config d1 'disk=["format=raw,vdev=xvda,access=rw,target=/dev/sda"]'
check create boot d1 || exit
in_guest d1 10 'modprobe xen-blkfront; wait_for 10 test -b /dev/xvda'
# The host made the contents, and looks at them again afterwards.
check blocks-are-right said 'disk ok' d1 $((60 + mib * 2)) "disktest /dev/xvda $mib 2"
flushes() { cat /sys/bus/xen-backend/devices/vbd-$(xl domid d1)-51712/statistics/f_req; }
check flush-reaches-the-back-end eval '[ "$(flushes)" -gt 0 ]'
killed() {
	in_guest d1 10 '(while :; do dd if=/dev/xvda of=/dev/null bs=64k iflag=direct; done) > /dev/null 2>&1 &'
	sleep 1
	xl destroy d1 && gone d1
}
check killed-while-it-reads killed

# aside AT: put aside, and one may look at its registers
aside() {
	xl pci-assignable-add $1 || return 1
	printf '\002\000' | dd of=/sys/bus/pci/devices/$1/config bs=1 seek=4 conv=notrunc 2> /dev/null
}
# region AT N: the address of its memory N
region() { sed -n $(($2 + 1))p /sys/bus/pci/devices/$1/resource | cut -d' ' -f1; }
modprobe xen-pciback

# The controller's own reset ends its interrupts (GHC.IE), which dom0's driver leaves on.
at=$(readlink -f /sys/block/sda/device | grep -oE '[0-9a-f:]+\.[0-9]/ata' | cut -d/ -f1)
put_aside() {
	local ghc
	aside $at && ghc=$(busybox devmem $(($(region $at 5) + 4)) 32) || return 1
	echo "GHC: $ghc"
	[ $((ghc & 3)) = 0 ] && ! xl dmesg | grep 'could not be reset'
}
check put-aside-it-is-reset put_aside
comes_back() { xl pci-assignable-remove -r $at && wait_for 30 test -b /dev/sda && disktest /dev/sda $mib 2; }
check it-works-again comes_back

# Intel's 82559ER, whose receiver somebody left on (the status word's bits 2 to 5; 1 in the command word starts it).
nic=$(devices device 0x1209)
receiver() { echo $(($(busybox devmem $(region $nic 0) 16) >> 2 & 15)); }
nic_put_aside() {
	printf '\002\000' | dd of=/sys/bus/pci/devices/$nic/config bs=1 seek=4 conv=notrunc 2> /dev/null
	busybox devmem $(($(region $nic 0) + 2)) 8 1
	[ $(receiver) != 0 ] || { echo "its receiver cannot be turned on"; return 1; }
	aside $nic && [ $(receiver) = 0 ] && ! xl dmesg | grep 'could not be reset'
}
check a-nic-put-aside-is-reset nic_put_aside
