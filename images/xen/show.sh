# show.sh MIB: a driver domain that owns the NIC, two guests that have their network from it, and a disk that one of them has
# from dom0, for `./tandem run`; each claim is a report of its own.
mib=${1:-8}
. /xen/driving.sh
fail() { # WHAT: with the end of what was last done
	say "show FAIL $1: $(tail -n 3 /tmp/out 2> /dev/null | tr '\n' '|')"
	exit
}
domain() { say "show domain name=$1 domid=$(xl domid $1) vcpus=$(in_guest $1 10 nproc) kernel=$(in_guest $1 10 uname -r)"; }
guest() { # guest NAME ADDRESS LINE...
	local name=$1 address=$2
	behind $name driver $address "${@:3}"
	boot $name > /tmp/out 2>&1 || fail "$name does not boot"
	plugged $name > /tmp/out || fail "$name is not plugged in"
	in_guest $name 40 "job_address $address; mkdir -p /www; echo page of $name > /www/index.html; httpd -h /www" > /tmp/out 2>&1 ||
		fail "$name has no network"
	domain $name
}
page() { # page NAME ADDRESS
	say "show page by=$1 from=$2 text=$(in_guest $1 30 "wget -q -O - http://$2/ | tr ' ' '_'")"
}
result() { # result NAME COMMAND...: what a test tool in the guest says
	local name=$1
	shift
	say "show $name $(in_guest $name $((90 + mib * 4)) "$*")"
}
backend_of() { xl $1-list $2 | awk 'NR == 2 { print $2 }'; }

modprobe nvme
modprobe xen-pciback
nic=$(devices class 0x020000)
xl pci-assignable-add $nic > /tmp/out 2>&1 || fail "the NIC cannot leave dom0"
serve_network driver $nic e1000 > /tmp/out 2>&1 || fail "the driver domain does not serve"
domain driver
module='basename $(readlink /sys/class/net/eth0/device/driver)'
say "show nic is=$nic module=$(in_guest driver 10 "$module") owner=$(xl pci-list driver | grep -q $nic && xl domid driver) dom0=$(ls /sys/class/net | tr '\n' ',')"
guest alice 3
guest bob 4 'vcpus=2' 'disk=["format=raw,vdev=xvda,access=rw,target=/dev/nvme1n1"]'
say "show served alice=$(backend_of network alice) bob=$(backend_of network bob) disk=$(backend_of block bob)"
page alice 10.9.0.1
page bob 10.9.0.1
page alice 10.9.0.4
page bob 10.9.0.3
result alice nettest eth0 10.9.0.1 $mib 64
in_guest alice 10 '(tcptest serve > /dev/null 2>&1 &)'
result bob tcptest put 10.9.0.3 $mib
result bob tcptest get 10.9.0.3 $mib
in_guest bob 20 'modprobe xen-blkfront; wait_for 10 test -b /dev/xvda' > /tmp/out 2>&1 || fail "bob has no disk"
result bob disktest /dev/xvda $mib 2
timeout 60 xl shutdown -w alice > /tmp/out 2>&1
gone alice || fail "alice does not shut down"
for name in bob driver; do
	xl destroy $name > /tmp/out 2>&1
	gone $name || fail "$name cannot be destroyed"
done
say "show over domains=$(xl list | tail -n +2 | wc -l)"
