# A driver domain's part: sourced by init.sh.

# pci: the devices that the toolstack gave us are there
job_pci() {
	modprobe xen-pcifront
	wait_for 20 sh -c 'ls /sys/bus/pci/devices | grep -q .' || { say "pci FAIL no device"; return 1; }
	say "pci $(ls /sys/bus/pci/devices | tr '\n' ' ')"
}

# backend:DRIVER: the NIC in a bridge, or the disk of nvme or ahci, and the daemon that plugs guests in
job_backend() {
	case $1 in
	nvme) backend_modules xen-blkback && job_nvme || return 1 ;;
	ahci)
		backend_modules xen-blkback || return 1
		modprobe ahci && modprobe sd_mod && wait_for 30 test -b /dev/sda || { say "backend FAIL no disk"; return 1; }
		;;
	*) backend_modules xen-netback bridge && job_bridge "$1" || return 1 ;;
	esac
	backend_daemon
}

# backend_modules [MODULE...]: what a driver domain's back ends need, or of these only those that are named
backend_modules() {
	[ $# -gt 0 ] || set -- xen-netback xen-blkback bridge
	ln -sf /proc/self/fd /dev/fd
	for n in 0:stdin 1:stdout 2:stderr; do ln -sf /proc/self/fd/${n%:*} /dev/${n#*:}; done
	mount -t tmpfs run /run
	mkdir -p /run/xen /run/lock
	rm -rf /var/run && ln -s /run /var/run
	for m in xenfs xen-privcmd xen-evtchn xen-gntdev xen-gntalloc "$@"; do
		modprobe $m || { say "backend FAIL modprobe $m"; return 1; }
	done
	mountpoint -q /proc/xen 2> /dev/null || mount -t xenfs xenfs /proc/xen 2> /dev/null
}
backend_daemon() { PATH=$PATH:/usr/lib/xen-4.17/bin xl devd || { say "backend FAIL xl devd"; return 1; }; }

# standby_disk:DRIVER: all is ready before the disk of nvme or ahci is there, however long that takes; plug waits for it.
job_standby_disk() {
	backend_modules || return 1
	standby_modules xen-pcifront $1 $([ $1 = nvme ] || echo sd_mod) || return 1
	(until plug; do usleep 100000; done) < /dev/null > /dev/console 2>&1 &
	say "standby_disk waits"
}

# network_disk:LAST: the disk is one that the host 10.9.0.1 has, by our interface 10.9.0.LAST at the hypervisor's switch; and the daemon that plugs guests in.
# There may be no way there yet: that is waited for without a limit. When the connection is lost all that waits for the disk fails, and nobody should be
# told so who can wait: this domain dies, and what it has not done is asked of the next one.
job_network_disk() {
	backend_modules xen-blkback || return 1
	modprobe xen-netfront && modprobe nbd nbds_max=1 max_part=4 || { say "network_disk FAIL modprobe"; return 1; }
	wait_for 10 test -e /sys/class/net/eth0 || { say "network_disk FAIL no interface at the switch"; return 1; }
	ifconfig eth0 10.9.0.$1 netmask 255.255.255.0 up
	say "network_disk waits"
	local lost=
	(
		until [ "$lost" = 3 ]; do
			usleep 200000
			ping -c 1 -W 1 10.9.0.1 > /dev/null || continue
			nbdclient /dev/nbd0 10.9.0.1 10809
			lost=$?
		done
		echo c > /proc/sysrq-trigger
	) > /dev/console 2>&1 < /dev/null &
	# Who opens it has its partitions looked for.
	until [ $(cat /sys/block/nbd0/size) -gt 0 ] && : < /dev/nbd0; do usleep 200000; done
	backend_daemon && say "network_disk ok"
}

# bridge_switch DRIVER: the NIC in a bridge with our own interface at the hypervisor's switch, whose way out we are
bridge_switch() {
	modprobe bridge || return 1
	job_bridge "$1" || return 1
	bridge_own
}

# bridge_own: our own interface at the hypervisor's switch joins the NIC's bridge
bridge_own() {
	modprobe xen-netfront
	wait_for 10 test -e /sys/class/net/eth1 || { say "bridge FAIL no interface at the switch"; return 1; }
	ip link set eth1 master xenbr0 up
	join_few
}

# join_few: of the segments that the NIC receives no more are joined to one packet than our own interface at the switch sends whole: 18 pages, and
# of a card whose buffers lie one behind the other some segments are in two. By its path: busybox' shell has an `ip` of its own.
join_few() { /bin/ip link set eth0 gro_max_size 17000; }

# bridge_switch:DRIVER: the same by the kernel's command line; what went wrong is said
job_bridge_switch() { bridge_switch "$1" && say "bridge_switch ok"; }

# routes:DRIVER:LAST...: nothing is bridged: packets of the guests 10.9.0.LAST are routed between the NIC and our own interface at the hypervisor's switch.
# On either side we answer for who is on the other one (proxy ARP), so nobody else has to know of a route.
job_routes() {
	local driver=$1 last link
	shift
	standby_modules xen-netfront || return 1
	wait_for 10 test -e /sys/class/net/eth0 || { say "routes FAIL no interface at the switch"; return 1; }
	ip link set eth0 name eth1
	standby_modules "$driver" || return 1
	wait_for 10 test -e /sys/class/net/eth0 || { say "routes FAIL no interface from $driver"; return 1; }
	echo 1 > /proc/sys/net/ipv4/ip_forward
	for link in eth0 eth1; do
		echo 1 > /proc/sys/net/ipv4/conf/$link/proxy_arp
		echo 0 > /proc/sys/net/ipv4/neigh/$link/proxy_delay
		ip link set $link up
	done
	join_few
	ip addr add 10.9.0.2/24 dev eth0
	for last in "$@"; do ip route add 10.9.0.$last/32 dev eth1; done
	wait_for 15 ping -c 1 -W 1 10.9.0.1 || { say "routes FAIL no answer to ping"; return 1; }
	say "routes ok nic=$driver"
}

# standby:DRIVER: as bridge_switch; all is ready before the NIC is there, however long that takes. Our own interface is not the way out as long as the link
# is said to be down; it is in the bridge early, since Linux takes up to a second until it forwards what comes by a new one. A NIC that is there at
# once gets its link meanwhile.
job_standby() {
	xenstore-write data/link down || return 1
	standby_modules xen-netfront || return 1
	wait_for 10 test -e /sys/class/net/eth0 || { say "standby FAIL no interface at the switch"; return 1; }
	ip link set eth0 name eth1
	standby_modules xen-pcifront $([ $1 != virtio_net ] || echo virtio_pci) "$1" || return 1
	[ ! -e /sys/class/net/eth0 ] || ip link set eth0 up
	standby_modules bridge || return 1
	brctl addbr xenbr0
	brctl setfd xenbr0 0
	ip link set xenbr0 up
	ip addr add 10.9.0.2/24 dev xenbr0
	ip link set eth1 master xenbr0 up
	mkfifo /tmp/links
	# By its path: busybox' shell takes its own `ip` otherwise, which knows no `monitor`.
	/bin/ip -o monitor link > /tmp/links &
	local tells=$!
	# Open for writing, too: if nobody writes any more it is empty, and not at its end, at which nobody would wait.
	exec 8<> /tmp/links
	say "standby waits"
	until_link test -e /sys/class/net/eth0
	ip link set eth0 master xenbr0 up
	join_few
	# What comes before its link is up would be lost. Without a cable it goes on all the same.
	until=$(($(uptime_s) + 15))
	until_link link_is_up
	if forwards; then xenstore-write data/link up; else xenstore-write data/link unknown; fi
	kill -0 $tells || { say "standby FAIL nobody told of its link"; return 1; }
	say "standby ok"
}
standby_modules() {
	local m
	for m in "$@"; do
		modprobe $m || { say "standby FAIL modprobe $m"; return 1; }
	done
}
# until_link COMMAND...: until it succeeds. It is tried when the kernel tells of an interface that comes or changes, and each second.
until_link() { until "$@"; do read -r -t 1 line <&8 || usleep 20000; done; }
link_is_up() { forwards || [ $(uptime_s) -ge $until ]; }
# forwards: the bridge sends what comes for the NIC, and the NIC sends it. Linux tells bridges of links up to a second late, of those that are up and of those that are down: until it has
# looked at a NIC that has just come it takes it for up. Guests wait for the answer, so no process is started for it.
forwards() {
	local state= carrier= oper=
	{ read -r state < /sys/class/net/eth0/brport/state && read -r carrier < /sys/class/net/eth0/carrier && read -r oper < /sys/class/net/eth0/operstate; } 2> /dev/null
	[ "$state $carrier" = '3 1' ] && [ "$oper" != down ]
}
uptime_s() { cut -d. -f1 /proc/uptime; }

# tells_memory: domain 0 is told how much memory there is left
job_tells_memory() { /xen/tell-memory.sh < /dev/null > /dev/console 2>&1 & }

# dies_of_nic: all is well until there is a device
job_dies_of_nic() {
	modprobe xen-pcifront
	say "dies_of_nic waits"
	until ls /sys/bus/pci/devices | grep -q .; do usleep 100000; done
	echo c > /proc/sysrq-trigger
}

# wedge: the kernel takes no interrupt any more
job_wedge() { insmod /lib/modules/$(uname -r)/updates/wedge.ko & }

# harm:WHAT:SEED[:MODULE]: the kernel is damaged from now on: wild (memory that is in use), text (the module's), dma (addresses for devices), or ring
# (memory that drivers share with their devices for good, and have got since rings_known)
job_harm() {
	if [ $1 = ring ]; then
		echo $2 > /sys/module/harm/parameters/go
	else
		[ ! -e /sys/module/harm ] || rmmod harm
		insmod /lib/modules/$(uname -r)/updates/harm.ko what=$1 seed=$2 target=$3
	fi
}
job_rings_known() { insmod /lib/modules/$(uname -r)/updates/harm.ko what=ring; }

# poke_module: /dev/poke, which writes to the kernel's memory
job_poke_module() { insmod /lib/modules/$(uname -r)/updates/poke.ko; }

# flood: keeps the NIC busy, without an end
job_flood() { ping -i 0.005 -s 1400 10.9.0.1 > /dev/null 2>&1 & }

# dma:READS|WRITES:ADDRESS: QEMU's edu device is told to access that machine address
job_dma() {
	dir=$(dirname $(grep -l 0x11e8 /sys/bus/pci/devices/*/device)) || return 1
	bar=$(head -n 1 $dir/resource | cut -d' ' -f1)
	buffer=0x40000
	# Memory decoding and bus mastering on.
	printf '\006\000' | dd of=$dir/config bs=1 seek=4 conv=notrunc 2> /dev/null
	case $1 in
	reads) from=$2 to=$buffer command=1 ;;
	writes) from=$buffer to=$2 command=3 ;;
	esac
	devmem $((bar + 0x80)) 64 $from
	devmem $((bar + 0x88)) 64 $to
	devmem $((bar + 0x90)) 64 64
	devmem $((bar + 0x98)) 64 $command
	wait_for 5 sh -c "[ \$((\$(devmem $((bar + 0x98)) 64) & 1)) = 0 ]"
}

# twin_module [PARAMETER...]: the kernel module that loads twins
job_twin_module() { insmod /lib/modules/$(uname -r)/updates/tandem.ko "$@"; }

# twind ARGUMENT...: in the background; what it says is in /tmp/twind
job_twind() { twind "$@" > /tmp/twind 2>&1 & echo $! > /tmp/twind.pid; }

# twin_kept: the twin of the NIC's driver is the way out; another twind comes when one ends
job_twin_kept() {
	job_twin_module
	(while :; do job_twind --interface eth0; wait; usleep 500000; done) &
}

# twin_ahead:DRIVER: the same; the twin is made before the interface is there
job_twin_ahead() {
	modprobe $1 && job_twin_module || return 1
	(while :; do job_twind --interface eth0 --wait $1; wait; usleep 500000; done) &
}

# drive: takes commands from its console, as a guest does
job_drive() {
	. /xen/guest.sh
	job_serve
}
