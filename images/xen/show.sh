# show.sh MIB: a driver domain that owns the NIC, two guests that have their network from it, and a disk that one of them has
# from dom0; then a guest at the hypervisor's switch, whose way out is the driver domain and then the twin of its driver; then driver
# domains that crash. For `./tandem run`; each claim is a report of its own.
mib=${1:-8}
. /xen/driving.sh
. /xen/switching.sh
. /xen/show-deaths.sh
# Stock Xen has no switch.
xl info | grep -q '^xen_extra.*tandem' && has_switch=1
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
if [ "$has_switch" ]; then
	way_out driver
	daemon_starts > /tmp/out 2>&1 || fail "no switch"
	# Nobody but twins has the CPUs that come beside the first.
	at_switch="$(plug 2)" areas="maxvcpus=$((1 + $(nproc)))"
fi
serve_network driver $nic e1000 ${at_switch:+"$at_switch" "$areas"} > /tmp/out 2>&1 || fail "the driver domain does not serve"
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
destroy() {
	xl destroy $1 > /tmp/out 2>&1
	gone $1 || fail "$1 cannot be destroyed"
}
destroy bob

# passes WAY: what carol moves goes there
passes() {
	say "show way is=$1 by=$(in_guest driver 10 '[ -e /sys/class/net/xenbr0/brif/eth0 ] && echo linux || echo twin')"
	result carol "nettest eth0 10.9.0.1 $mib 64"
	result carol "tcptest put 10.9.0.1 $mib"
	result carol "tcptest get 10.9.0.1 $mib"
}
# stream_moves: the one that goes on in the background
stream_moves() { moves carol > /tmp/out 2>&1 && echo yes; }
twins() {
	local out
	in_guest driver 40 'bridge_own' > /tmp/out 2>&1 || fail "the driver domain has no interface at the switch"
	config carol "$(plug 5)"
	boot carol > /tmp/out 2>&1 || fail "carol does not boot"
	plugged_address carol 5 > /tmp/out 2>&1 || fail "carol is not plugged in"
	domain carol
	passes linux
	in_guest driver 60 'job_twin_module; job_twind --interface eth0' > /tmp/out 2>&1
	attached() { in_guest driver 10 'tail -n 1 /tmp/twind' > /tmp/out 2>&1; grep -q '^twind: attached' /tmp/out; }
	wait_for 120 attached || fail "the twin does not get the card"
	passes twin
	# The twin's daemon dies in a stream: Linux takes over.
	in_guest carol 10 '(tcptest put 10.9.0.1 65536 > /dev/null 2>&1 &)'
	out="twin=$(stream_moves)"
	in_guest driver 20 'kill -9 $(cat /tmp/twind.pid); wait_for 10 test -e /sys/class/net/xenbr0/brif/eth0' > /tmp/out 2>&1 ||
		fail "Linux does not take over"
	say "show stream $out linux=$(stream_moves)"
	destroy carol
	kill $(cat /tmp/tandemd.pid)
}
[ -z "$has_switch" ] || twins
destroy driver
[ -z "$has_switch" ] || deaths $mib
say "show over domains=$(xl list | awk 'NR > 1 && $1 != "net" && $1 != "disk"' | wc -l)"
