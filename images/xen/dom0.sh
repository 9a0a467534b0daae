# dom0 with the toolstack: sourced by init.sh, which has say and wait_for.
logs=/var/log/xen/console

# toolstack[:STORE]: modules, xenstored (or oxenstored), xenconsoled; `xl` works after it
job_toolstack() {
	# devtmpfs has not these; the hotplug scripts' lock needs /dev/stdin.
	ln -sf /proc/self/fd /dev/fd
	for n in 0:stdin 1:stdout 2:stderr; do ln -sf /proc/self/fd/${n%:*} /dev/${n#*:}; done
	mount -t tmpfs run /run
	mkdir -p /run/xen /run/xenstored /run/lock
	rm -rf /var/run && ln -s /run /var/run
	for m in xenfs xen-privcmd xen-evtchn xen-gntdev xen-gntalloc xen-netback xen-blkback bridge loop; do
		modprobe $m || say "toolstack FAIL modprobe $m"
	done
	mountpoint -q /proc/xen 2>/dev/null || mount -t xenfs xenfs /proc/xen 2>/dev/null
	PATH=$PATH:/usr/lib/xen-4.17/bin
	${1:-xenstored} --pid-file /run/xen/xenstored.pid
	wait_for 20 xenstore-exists / || { say "toolstack FAIL ${1:-xenstored} does not answer"; return; }
	xen-init-dom0 > /tmp/init-dom0.log 2>&1 || { cat /tmp/init-dom0.log; say "toolstack FAIL xen-init-dom0"; return; }
	xenconsoled --log=guest --log-dir=$logs --pid-file=/run/xen/xenconsoled.pid
	wait_for 10 xl list || { xl list; say "toolstack FAIL xl list"; return; }
	say "toolstack ok version=$(xl info | sed -n 's/^xen_version *: *//p') uptime=$(cut -d' ' -f1 /proc/uptime)"
}

# bridge:DRIVER: the NIC and a bridge with it, 10.9.0.2
job_bridge() {
	[ "$1" != virtio_net ] || modprobe virtio_pci
	modprobe "$1" || { say "bridge FAIL modprobe $1"; return 1; }
	wait_for 10 test -e /sys/class/net/eth0 || { say "bridge FAIL no interface from $1"; return 1; }
	ip addr flush dev eth0
	brctl addbr xenbr0
	brctl addif xenbr0 eth0
	ip link set eth0 up
	ip link set xenbr0 up
	ip addr add 10.9.0.2/24 dev xenbr0
	wait_for 15 ping -c 1 -W 1 10.9.0.1 || { say "bridge FAIL no answer to ping"; return 1; }
	say "bridge ok nic=$1"
}

# xl:GROUP[:ARGUMENT...]: the checks of /xen/tests/GROUP.sh. They are over if bash has come to the file's end (or to a `return`): one that died says nothing.
job_xl() {
	group=$1
	shift
	rm -f /tmp/over
	bash -c '. /xen/lib.sh; . "$0"; : > /tmp/over' /xen/tests/$group.sh "$@"
	status=$?
	if [ -e /tmp/over ]; then
		say "group $group over uptime=$(cut -d' ' -f1 /proc/uptime)"
	else
		say "group $group FAIL its shell has ended before its checks: status $status"
	fi
}

# show:MIB: what `./tandem run` shows of guests
job_show() { bash -c '. /xen/lib.sh; . /xen/show.sh' show "$@"; }

# What a person gets who typed `./tandem shell`.
job_xlshell() {
	say "shell"
	echo "Examples are in /etc/xen: xl create -c /etc/xen/guest.cfg (^] leaves the console)"
	setsid cttyhack bash --rcfile /xen/lib.sh
}

# guest_loads:KIND:COUNT: the loads of `./tandem bench` in a guest that dom0 serves; driven_loads: that a driver domain serves;
# switched_loads:COUNT:WAY:KIND: that the hypervisor's switch serves, whose way out is a driver domain (WAY is switch) or its driver's
# twin (mirror)
job_guest_loads() { bash -c '. /xen/lib.sh; . /xen/bench.sh' bench dom0 "$@"; }
job_driven_loads() { bash -c '. /xen/lib.sh; . /xen/bench.sh' bench driver "$@"; }
job_switched_loads() { bash -c '. /xen/lib.sh; . /xen/bench.sh' bench $2 $3 $1; }

# scaling:COUNT:MOST: the loads of `./tandem bench scaling`
job_scaling() { bash -c '. /xen/lib.sh; . /xen/scaling.sh' scaling "$@"; }

# drivers: what `./tandem bench drivers` measures
job_drivers() { bash -c '. /xen/lib.sh; . /xen/drivers.sh'; }

# restart:DRIVER:WAY:MODE:COUNT:CAUSE[:CAUSE...]: a driver domain dies so often by each cause, for `./tandem bench restart`
job_restart() { bash -c '. /xen/lib.sh; . /xen/restart.sh' restart "$@"; }
