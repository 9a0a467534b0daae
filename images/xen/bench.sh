# bench.sh KIND COUNT: a guest with an interface and a disk from dom0 runs the loads of KIND. Meanwhile dom0 does nothing
# but serve it: the command goes to the guest's console, and dom0 then sleeps until a domain has gone.
kind=$1
count=$2
case $kind in
net) device='vif=["mac=00:16:3e:00:00:03,bridge=xenbr0"]' ready='job_address 3' ;;
disk)
	device='disk=["format=raw,vdev=xvda,access=rw,target=/dev/nvme0n1"]'
	ready='modprobe xen-blkfront; wait_for 10 test -b /dev/xvda'
	;;
esac
config loaded 'memory=256' 'tsc_mode="native"' "$device"
boot loaded || { say "load FAIL no guest"; exit; }
in_guest loaded 30 "$ready" || { say "load FAIL the guest has no device"; exit; }
domid=$(xl domid loaded)
owner guest $domid
sh -c '. /load.sh; job_modules dom0'
log=$logs/guest-loaded.log
tty=$(xenstore-read /local/domain/$domid/console/tty)
echo "0 job_loads guest $kind $count /dev/xvda; poweroff -f" > $tty
# The first event is the watch itself.
xenstore-watch -n 2 @releaseDomain > /dev/null
gone loaded 60 || say "load FAIL the guest stays"
tr -d '\r' < $log | grep -aE 'TANDEM: (load|module)'
