# devices.sh MIB: guests' interfaces and disks, served by dom0's netback and blkback.
mib=${1:-8}
# Of datagrams, and of streams at the same time: each must arrive, so many more of them say nothing new.
few=$((mib < 64 ? mib : 64))
modprobe nvme
wait_for 10 test -b /dev/nvme0n1
tcptest serve > /dev/null 2>&1 &

truncate -s 16M /tmp/small
dd if=/dev/urandom of=/tmp/small bs=1M count=16 conv=notrunc 2> /dev/null
sum=$(sha256sum < /tmp/small)
config d1 'vif=["mac=00:16:3e:00:00:03,bridge=xenbr0"]' 'disk=["format=raw,vdev=xvda,access=rw,target=/dev/nvme0n1"]'
config d2 'vcpus=4' 'vif=["mac=00:16:3e:00:00:04,bridge=xenbr0"]' 'disk=["format=raw,vdev=xvda,access=ro,target=/tmp/small"]'
remember
check create-with-devices boot d1 || exit
check create-with-four-vcpus boot d2 || exit
check network-list sh -c 'xl network-list d1 | grep -q "00:16:3e:00:00:03 .* /local/domain/0/backend/vif/"'
check block-list sh -c 'xl block-list d1 | grep -q "^51712 .* /local/domain/0/backend/vbd/"'
check bridge-has-both eval '[ $(ls -d /sys/class/net/xenbr0/brif/vif* | wc -l) = 2 ]'

# Network: the outside, dom0, each other.
check address in_guest d1 20 job_address 3
check address-of-the-second in_guest d2 20 job_address 4
check packets-to-and-from-outside said 'net ok' d1 $((60 + few * 8)) "$keeps && nettest eth0 10.9.0.1 $few 64"
check packets-with-four-vcpus said 'net ok' d2 $((60 + few * 8)) "nettest eth0 10.9.0.1 $few 64"
check stream-to-outside said 'tcp ok' d1 $((60 + mib * 2)) "tcptest put 10.9.0.1 $mib"
check stream-from-outside said 'tcp ok' d1 $((60 + mib * 2)) "tcptest get 10.9.0.1 $mib"
check stream-to-dom0 said 'tcp ok' d1 $((60 + mib * 2)) "tcptest put 10.9.0.2 $mib"
check stream-from-dom0 said 'tcp ok' d1 $((60 + mib * 2)) "tcptest get 10.9.0.2 $mib"
in_guest d2 10 '(tcptest serve > /dev/null 2>&1 &) ; mkdir -p /www; echo page of d2 > /www/index.html; httpd -h /www'
check stream-guest-to-guest said 'tcp ok' d1 $((60 + mib * 2)) "tcptest put 10.9.0.4 $mib"
check stream-back said 'tcp ok' d1 $((60 + mib * 2)) "tcptest get 10.9.0.4 $mib"
check page-from-outside said 'a page from outside' d1 20 'wget -q -O - http://10.9.0.1/'
check page-from-the-other-guest said 'page of d2' d1 20 'wget -q -O - http://10.9.0.4/'
all_at_once() {
	in_guest d2 $((60 + few * 4)) "(tcptest get 10.9.0.1 $few; tcptest put 10.9.0.2 $few) > /tmp/streams &"
	streams_ok 2 d1 $((60 + few * 4)) "tcptest put 10.9.0.4 $few; tcptest get 10.9.0.1 $few" || return 1
	said '^2$' d2 $((60 + few * 4)) 'wait_for 60 grep -q "tcp .* put" /tmp/streams; grep -c "tcp ok" /tmp/streams'
}
check streams-at-the-same-time all_at_once
no_errors() {
	in_guest $1 10 'cd /sys/class/net/eth0/statistics; for f in rx_errors tx_errors rx_crc_errors tx_dropped; do [ $(cat $f) = 0 ] || echo $f $(cat $f); done; dmesg | grep -iE "warn|bug:|oops:" || true' | tee /tmp/errors
	! grep -q . /tmp/errors
}
check no-errors-at-the-interface no_errors d1
check no-errors-at-the-second no_errors d2

# Disks: the host made the contents, and looks at them again afterwards.
backend() { echo /sys/bus/xen-backend/devices/vbd-$(xl domid $1)-$2; }
in_guest d1 10 'modprobe xen-blkfront; wait_for 10 test -b /dev/xvda'
in_guest d2 10 'modprobe xen-blkfront; wait_for 10 test -b /dev/xvda'
check blocks-are-right said 'disk ok' d1 $((60 + mib * 2)) "disktest /dev/xvda $mib 2"
check flush-reaches-the-back-end eval '[ "$(cat $(backend d1 51712)/statistics/f_req)" -gt 0 ]'
read_only() {
	said '^1$' d2 10 'blockdev --getro /dev/xvda' || return 1
	said refused d2 20 'dd if=/dev/zero of=/dev/xvda bs=4k count=1 oflag=direct 2> /dev/null && echo written || echo refused' || return 1
	said "${sum%% *}" d2 30 'sha256sum < /dev/xvda' && [ "$sum" = "$(sha256sum < /tmp/small)" ]
}
check read-only-disk-refuses-writes read_only

# Coming and going while the guest runs.
truncate -s 32M /tmp/more
check block-attach xl block-attach d1 format=raw,vdev=xvdb,access=rw,target=/tmp/more
fs() {
	in_guest d1 60 'wait_for 10 test -b /dev/xvdb; modprobe crc32c_generic; modprobe ext4; mkdir -p /mnt; mke2fs /dev/xvdb > /dev/null; mount /dev/xvdb /mnt; dd if=/dev/urandom of=/mnt/f bs=1M count=8 2> /dev/null; sha256sum < /mnt/f > /tmp/f.sum; umount /mnt; echo 3 > /proc/sys/vm/drop_caches; mount /dev/xvdb /mnt; [ "$(sha256sum < /mnt/f)" = "$(cat /tmp/f.sum)" ] && umount /mnt'
}
check file-system-on-it fs
check block-detach eval 'xl block-detach d1 xvdb && wait_for 10 eval "! losetup -a | grep -q /tmp/more"'
check block-device-is-gone-in-the-guest in_guest d1 20 'wait_for 10 test ! -b /dev/xvdb'
check network-attach xl network-attach d1 mac=00:16:3e:00:00:05 bridge=xenbr0
second_interface() { said '1 packets received' d1 30 'wait_for 10 test -e /sys/class/net/eth1; ifconfig eth0 down; ifconfig eth1 10.9.0.5 netmask 255.255.255.0 up; usleep 500000; ping -c 1 -W 5 10.9.0.1'; }
check second-interface-works second_interface
check network-detach eval 'xl network-detach d1 1 && wait_for 10 eval "! ls /sys/class/net | grep -q vif.*[.]1"'
check interface-is-gone-in-the-guest in_guest d1 20 'wait_for 10 test ! -e /sys/class/net/eth1'

# The end: killed in the middle of traffic, shut down in order; nothing stays.
kill_in_traffic() {
	in_guest d1 20 'ifconfig eth0 up; (tcptest get 10.9.0.4 4096; tcptest put 10.9.0.4 4096) > /dev/null 2>&1 & (while :; do dd if=/dev/xvda of=/dev/null bs=64k iflag=direct; done) > /dev/null 2>&1 &'
	sleep 2
	xl destroy d1 && gone d1
}
check killed-in-the-middle-of-traffic kill_in_traffic
check the-other-still-works said 'tcp ok' d2 60 'tcptest get 10.9.0.2 1'
check shutdown-with-devices eval 'timeout 60 xl shutdown -w d2; gone d2'
check no-interface-stays eval 'wait_for 20 eval "! ls /sys/class/net | grep -q vif"'
check no-loop-device-stays eval 'wait_for 20 eval "! losetup -a | grep -q /tmp/small"'
check no-node-stays no_node 'vif/[1-9]|vbd/[1-9]|^/local/domain/[1-9]|^/libxl/[1-9]'
check nothing-stays nothing_stays
