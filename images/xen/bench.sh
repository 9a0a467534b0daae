# bench.sh SERVER KIND COUNT: a guest that SERVER serves runs the loads of KIND. SERVER is dom0; driver, a driver domain; switch, the hypervisor, with a
# driver domain behind it; for packets also mirror or stlb, the same with the driver's twin in that mode. Meanwhile dom0
# does nothing but its part of that: the command goes to the guest's console, and dom0 then sleeps until a domain has gone.
server=$1
kind=$2
count=$3
memory=256
log=$logs/guest-loaded.log
case $kind in
net | few)
	class=0x020000 driver=e1000 plug=vif/0
	device='vif=["mac=00:16:3e:00:00:03,bridge=xenbr0'
	driven=',backend=driver,script=vif-plug' target=
	ready='job_address 3'
	;;
disk | files)
	class=0x0108 driver=nvme plug=vbd/51712
	device='disk=["format=raw,vdev=xvda,access=rw'
	driven=',backend=driver,script=disk-plug' target=',target=/dev/nvme0n1'
	ready='modprobe xen-blkfront; wait_for 10 test -b /dev/xvda'
	[ $kind = disk ] || memory=512
	;;
esac
. /xen/loads.sh
case $server in
dom0) driven= ;;
driver) drives '' "job_backend $driver" ;;
switch | mirror | stlb)
	switches $server
	case $kind in
	disk | files) driven=',backend=disk,script=disk-plug' ;;
	*) device='vif=["mac=00:16:3e:00:00:03' driven=',backend=net' ;;
	esac
	;;
esac
config loaded "memory=$memory" 'tsc_mode="native"' "$device$driven$target\"]"
boot loaded > /tmp/out 2>&1 || quit "no guest"
[ $server != driver ] || plugged loaded $plug > /tmp/out 2>&1 || quit "the guest is not plugged in"
in_guest loaded 40 "$ready" > /tmp/out 2>&1 || quit "the guest has no device"
owner guest $(xl domid loaded)
[ $server = dom0 ] || owner driver $(xl domid driver)
sh -c '. /load.sh; job_modules dom0'
tty=$(xenstore-read /local/domain/$(xl domid loaded)/console/tty)
echo "0 job_loads guest $kind $count /dev/xvda; poweroff -f" > $tty
# The first event is the watch itself.
xenstore-watch -n 2 @releaseDomain > /dev/null
gone loaded 60 || quit "the guest stays"
tr -d '\r' < $log | grep -aE 'TANDEM: (load|module)'
