# ahci.sh MIB: a guest's disk is one of an AHCI controller, served by dom0's blkback.
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
