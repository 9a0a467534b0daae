# driver-dies.sh DRIVER MIB: in the middle of traffic the driver domain is destroyed, and its successor crashes; everything
# else lives on, and the guests get their network back from a new one.
driver=$1
mib=${2:-4}
. /xen/driving.sh
modprobe nvme
wait_for 10 test -b /dev/nvme0n1
take_nic
remember
check a-driver-domain-serves-a-network serve_network dd $nic $driver || exit
behind u1 dd 3 'disk=["format=raw,vdev=xvda,access=rw,target=/dev/nvme0n1"]'
behind u2 dd 4 'vcpus=2'
check a-guest-starts boot u1 || exit
check another-starts boot u2 || exit
for g in u1 u2; do check $g-is-plugged-in plugged $g; done
check address in_guest u1 30 job_address 3
check address-of-the-second in_guest u2 30 job_address 4
in_guest u2 10 '(tcptest serve > /dev/null 2>&1 &)'
in_guest u1 20 'modprobe xen-blkfront; wait_for 10 test -b /dev/xvda'

# Work that goes on: u1's disk, verified again and again, its rounds counted; streams of both guests without an end.
rounds() { in_guest u1 20 'cat /tmp/rounds' | tail -n 1; }
in_guest u1 10 "(n=0; echo 0 > /tmp/rounds; while [ ! -e /tmp/stop ] && disktest /dev/xvda $mib 2 > /tmp/disk; do n=\$((n + 1)); echo \$n > /tmp/round && mv /tmp/round /tmp/rounds; done) > /dev/null 2>&1 &"
more_rounds() {
	local before=$(rounds)
	[ -n "$before" ] && wait_for 120 eval "[ \"\$(rounds)\" -gt $((before + 1)) ]" && return
	echo "rounds $before before, now $(rounds)"
	in_guest u1 20 'cat /tmp/disk; dmesg | tail -n 3'
	return 1
}
traffic() {
	in_guest u1 10 '(tcptest get 10.9.0.4 65536; tcptest get 10.9.0.1 65536) > /tmp/stream 2>&1 &'
	in_guest u2 10 '(tcptest put 10.9.0.1 65536) > /tmp/stream 2>&1 &'
	# It is under way: bytes pass the interface.
	said '^moves$' u1 90 'bytes() { cat /sys/class/net/eth0/statistics/rx_bytes; }; from=$(bytes); wait_for 60 eval "[ \$(bytes) -gt $((from + 1000000)) ]" && echo moves'
}
alive() { # what must be alive after the driver domain's end
	said '^here$' u1 20 'echo here' && said '^here$' u2 20 'echo here' &&
		! xl list | grep -E '\(null\)|^dd' && ! dmesg | grep -iE 'bug:|oops:|call trace'
}
# The NIC neither receives nor sends: its RCTL and TCTL are 0. Nobody owns it now, so dom0 may look.
silent() {
	local dir=/sys/bus/pci/devices/$nic register base
	base=$(head -n 1 $dir/resource | cut -d' ' -f1)
	printf '\002\000' | dd of=$dir/config bs=1 seek=4 conv=notrunc 2> /dev/null
	: > /tmp/silent
	for register in 0x100 0x400; do
		echo "$register: $(busybox devmem $((base + register)) 32)" | tee -a /tmp/silent
	done
	! grep -v ': 0x00000000$' /tmp/silent
}
# back DOMAIN: both guests get an interface from it in place of the lost one
back() {
	local g last=3
	for g in u1 u2; do
		timeout 120 xl network-detach $g 0 || { echo "detach from $g failed"; return 1; }
		in_guest $g 30 'wait_for 20 test ! -e /sys/class/net/eth0' || { echo "eth0 stays in $g"; return 1; }
		timeout 120 xl network-attach $g mac=00:16:3e:00:00:0$last backend=$1 bridge=xenbr0 script=vif-plug || { echo "attach to $g failed"; return 1; }
		plugged $g && in_guest $g 40 "job_address $last" || { echo "no answer to $g"; return 1; }
		last=$((last + 1))
	done
}
streams() {
	streams_ok 2 u1 $((60 + mib * 8)) "tcptest put 10.9.0.4 $mib; tcptest get 10.9.0.1 $mib" &&
		said 'net ok' u2 $((60 + mib * 8)) "nettest eth0 10.9.0.1 $mib 64"
}

check disk-rounds-before more_rounds
check traffic-is-under-way traffic
check destroy-it-in-the-middle eval 'xl destroy dd && gone dd'
check the-nic-is-silent silent
check all-others-live alive
check the-disk-goes-on more_rounds
check frames-agree audit
check a-new-driver-domain serve_network dd2 $nic $driver || exit
check guests-have-their-network-back back dd2
check streams-and-packets streams

check traffic-again traffic
crashed() { echo "c1 echo c > /proc/sysrq-trigger" > $(xenstore-read /local/domain/$(xl domid dd2)/console/tty); gone dd2 60; }
check it-crashes-in-the-middle crashed
check it-was-a-crash grep -q 'sysrq: Trigger a crash' $logs/guest-dd2.log
check the-nic-is-silent-again silent
check all-others-live-again alive
check the-disk-still-goes-on more_rounds
check frames-agree-again audit
check a-third-driver-domain serve_network dd3 $nic $driver || exit
check network-back-again back dd3
check streams-and-packets-again streams
check no-access-was-stopped no_dma_stopped

destroyed() { local d; for d in u1 u2 dd3; do xl destroy $d && gone $d || return 1; done; }
# The host looks at the disk afterwards.
check the-disk-is-right said 'disk ok' u1 200 "touch /tmp/stop; wait_for 100 eval '! pidof disktest' && disktest /dev/xvda $mib 2"
check destroy destroyed
check no-node-stays no_node 'vif/[1-9]|^/local/domain/[1-9]|^/libxl/[1-9]'
check nothing-stays nothing_stays
check frames-agree-at-the-end audit
