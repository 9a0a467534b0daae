# For bash in dom0, after show.sh's own: tandemd starts two driver domains, of the NIC and of a disk. A guest downloads, another writes; both
# driver domains crash at the same time, both guests go on, and say how long they waited.
. /xen/supervising.sh

# deaths MIB
deaths() {
	local mib=$1 nvme store gap blocks
	nvme=$(basename $(readlink -f /sys/class/nvme/nvme1/device))
	xl pci-assignable-add $nvme > /tmp/out 2>&1 || fail "the disk cannot leave dom0"
	driving driver "pci=['$nic,permissive=1']" "$(plug 2)" \
		"extra='$kernel_args oops=panic iommu=soft swiotlb=4096 tandem.do=standby:e1000+drive'"
	driving store "pci=['$nvme,permissive=1']" \
		"extra='$kernel_args oops=panic iommu=soft swiotlb=4096 tandem.do=standby_disk:nvme+drive'"
	: > $(log_of driver)
	: > $(log_of store)
	cat > /etc/tandem/tandemd.toml <<X
[service.net]
driver-domain = "driver"
[service.net.supervise]
config = "/tmp/driver.cfg"
standby = 1
[service.disk]
kind = "disk"
driver-domain = "store"
[service.disk.supervise]
config = "/tmp/store.cfg"
standby = 1
X
	daemon_starts > /tmp/out 2>&1 || fail "tandemd does not look after driver domains"
	config dave "$(plug 6)"
	boot dave > /tmp/out 2>&1 || fail "dave does not boot"
	plugged_address dave 6 > /tmp/out 2>&1 || fail "dave is not plugged in"
	daemon_said 1 'it has the disks' 200 > /tmp/out 2>&1 || fail "nobody has the disk"
	config erin 'disk=["format=raw,vdev=xvda,access=rw,backend=disk,script=disk-plug,target=/dev/nvme0n1"]'
	boot erin > /tmp/out 2>&1 || fail "erin does not boot"
	in_guest erin 90 'modprobe xen-blkfront; wait_for 80 test -b /dev/xvda' > /tmp/out 2>&1 || fail "erin has no disk"
	daemon_said 2 'waits to take its place' 300 > /tmp/out 2>&1 || fail "no other driver domains wait"
	outside_answers dave 60 > /tmp/out 2>&1 || fail "the outside does not answer dave"

	# The download takes longer than the outage: a pause after each block.
	in_guest dave 20 "(tcptest get 10.9.0.1 $((4 * mib)) 40 > /tmp/load 2>&1; echo over >> /tmp/load) & ping -i 0.1 10.9.0.1 > /tmp/pings 2>&1 &" > /tmp/out
	in_guest erin 20 "diskload /dev/xvda $mib $mib > /tmp/load 2>&1 &" > /tmp/out
	sleep 3
	downloaded() { in_guest dave 20 'tail -n 1 /tmp/load' | sed -n 's/^tcp at //p'; }
	blocks=$(downloaded)
	echo 't1 echo c > /proc/sysrq-trigger' > $(xenstore-read /local/domain/$(xl domid store)/console/tty)
	echo 't1 echo c > /proc/sysrq-trigger' > $(xenstore-read /local/domain/$(xl domid driver)/console/tty)
	daemon_said 1 'net: driver: recovered, panicked' > /tmp/out 2>&1 || fail "the network does not come back"
	daemon_said 1 'disk: store: recovered, panicked' > /tmp/out 2>&1 || fail "the disk does not come back"
	in_guest dave $((60 + 4 * mib)) "wait_for $((50 + 4 * mib)) grep over /tmp/load" > /tmp/out 2>&1 || fail "dave's download does not end"
	# The longest time without an answer: pings that were lost, each 100 ms, or one that waited.
	gap=$(in_guest dave 20 "killall ping; awk -F '[= ]' '/bytes from/ { for (n = 1; n < NF; n++) { if (\$n == \"seq\") seq = \$(n + 1); if (\$n == \"time\") ms = \$(n + 1) } hole = (seq - last - 1) * 100 + ms; if (last != \"\" && hole > most) most = hole; last = seq } END { print \"pause\", int(most) }' /tmp/pings" | sed -n 's/^pause //p')
	say "show outlived what=network pause_ms=$gap before=${blocks:-0} $(in_guest dave 20 'tail -n 2 /tmp/load | head -n 1') | $(recovered net)"
	in_guest erin 200 "killall diskload; wait_for 180 grep '^disk' /tmp/load" > /tmp/out 2>&1 || fail "erin's writes do not end"
	gap=$(in_guest erin 20 "grep ^gap /tmp/load | sort -n -k 3 | tail -n 1" | sed -n 's/^gap [0-9]* //p')
	say "show outlived what=disk pause_ms=${gap:-0} $(in_guest erin 20 'tail -n 1 /tmp/load') | $(recovered disk)"
	# As the host wants to find it.
	result erin disktest /dev/xvda $mib 2
	destroy dave
	destroy erin
	# Who looks after them may not have them back.
	daemon_ends > /tmp/out 2>&1 || fail "tandemd does not end"
	destroy driver
	destroy driver-standby
	destroy store
	destroy store-standby
}
recovered() { sed -n "s/^$1: .*recovered, //p" $daemon_log | tail -n 1; }
