# ahci.sh MIB: a guest's disk is one of an AHCI controller, served by dom0's blkback; then the controller is put aside.
mib=${1:-8}
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

# The controller has no function-level reset: its own ends its interrupts (GHC.IE), which dom0's driver leaves on.
at=$(readlink -f /sys/block/sda/device | grep -oE '[0-9a-f:]+\.[0-9]/ata' | cut -d/ -f1)
put_aside() {
	local dir=/sys/bus/pci/devices/$at ghc
	modprobe xen-pciback
	xl pci-assignable-add $at || return 1
	printf '\002\000' | dd of=$dir/config bs=1 seek=4 conv=notrunc 2> /dev/null
	ghc=$(busybox devmem $(($(sed -n 6p $dir/resource | cut -d' ' -f1) + 4)) 32) || return 1
	echo "GHC: $ghc"
	[ $((ghc & 3)) = 0 ] && ! xl dmesg | grep 'could not be reset'
}
check put-aside-it-is-reset put_aside
comes_back() { xl pci-assignable-remove -r $at && wait_for 30 test -b /dev/sda && disktest /dev/sda $mib 2; }
check it-works-again comes_back
