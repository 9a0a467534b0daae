# passthrough.sh DRIVER [silent]: a driver domain owns the NIC and, on a machine with an IOMMU, a device that is told to
# access what it may not. A silent IOMMU does not tell what it stops; then the other side looks at the memory.
driver=$1
silent=${2-}
. /xen/driving.sh
modprobe xen-pciback
nic=$(devices class 0x020000)
bad=$(devices device 0x11e8)
said_by_xen() { xl dmesg | grep -qE "$1"; }
refused() { # WORDS COMMAND...: it fails and says why
	local words=$1 out
	shift
	out=$("$@" 2>&1) && { echo "it was done: $out"; return 1; }
	echo "$out" | grep -q "$words" || { echo "$out"; return 1; }
}
is_bus_master() { [ $(($(od -An -tu2 -j4 -N2 /sys/bus/pci/devices/$1/config) & 4)) != 0 ]; }
all="$nic $bad"
each() { # COMMAND...: for each device
	local d
	for d in $all; do "$@" $d || return 1; done
}
count=$(echo $all | wc -w)
listed() { [ $("$@" | grep -c "$nic\|${bad:-none}") = $count ]; }

check assignable-add each xl pci-assignable-add
check assignable-list listed xl pci-assignable-list
remember

driving d1 "pci=[$(for d in $all; do echo -n "'$d,permissive=1',"; done)]" 'vcpus=2'
check a-driver-domain-starts boot d1 || exit
check pci-list listed xl pci-list d1
moves_packets() { # NAME MEBIBYTES
	local out
	out=$(in_guest $1 240 "job_net $driver $2 32")
	echo "$out" | grep 'net ok' || { echo "$out"; return 1; }
}
check stock-driver-moves-packets moves_packets d1 4

stopped() { # HOW ADDRESS
	local doing
	case $1 in reads) doing=reading ;; writes) doing=writing ;; esac
	in_guest d1 60 "job_dma $1 $2" || return 1
	[ -z "$silent" ] || return 0
	wait_for 5 said_by_xen "stopped $doing address $2|DMAR:.*fault addr 0*${2#0x}" || { xl dmesg | tail -n 3; return 1; }
}
if [ -n "$bad" ]; then
	# The hypervisor's text, and memory of others.
	check dma-to-the-hypervisor-is-stopped stopped writes 0x200000
	check dma-to-others-is-stopped stopped writes 0x40000000
	check dma-from-the-hypervisor-is-stopped stopped reads 0x200000
fi
check the-network-lives-on in_guest d1 60 'ping -c 3 -W 2 10.9.0.1'

driving d2 "pci=['$nic']"
check a-second-owner-is-refused refused "not assignable" xl create /tmp/d2.cfg
driving d3 'passthrough="enabled"' 'e820_host=1' \
	"extra='$kernel_args iommu=soft swiotlb=4096 tandem.do=drive'"
check a-domain-for-devices-starts eval 'xl create /tmp/d3.cfg > /dev/null && serving d3'
check attaching-what-another-has-is-refused refused "failed for PCI device" xl pci-attach d3 $nic

check traffic-begins in_guest d1 30 'job_flood; eth0=/sys/class/net/eth0/statistics; before=$(cat $eth0/rx_packets); wait_for 20 eval "[ \$(cat $eth0/rx_packets) -gt $((before + 20)) ]"'
check destroy-in-the-middle-of-traffic eval 'xl destroy d1 && gone d1'
is_idle() { ! is_bus_master $1; }
check a-device-without-an-owner-is-no-bus-master each is_idle
check the-device-is-assignable-again eval "xl pci-assignable-list | grep -q $nic"

attached() {
	xl pci-attach d3 $nic,permissive=1 || return 1
	in_guest d3 90 job_pci && moves_packets d3 1
}
check attach-to-a-running-domain attached
detached() {
	in_guest d3 60 "rmmod $driver"
	xl pci-detach d3 $nic && ! xl pci-list d3 | grep -q $nic && ! is_bus_master $nic
}
check detach detached
check destroy eval 'xl destroy d3 && gone d3'
# None of the NIC's: what it cannot read it does not send, and its driver is not told.
check no-other-access-is-stopped no_dma_stopped '(address 0x|fault addr 0*)(200000|40000000)\b'
check nothing-stays nothing_stays
check assignable-remove eval 'each xl pci-assignable-remove && ! xl pci-assignable-list | grep -q .'
