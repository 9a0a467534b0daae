# attaches.sh COUNT: an interface and a disk of a running guest come and go; nothing adds up.
attaches=${1:-2}
of=100
. /xen/cycling.sh

# netfront does not give its receive buffers back: Linux 6.1 has a mebibyte and a little less after each detach, on stock Xen
# too.
config c2 "memory=$((160 + attaches * 5 / 4))"
check create boot c2 || exit
attach() {
	xl block-attach c2 $(disk $1 xvdb /tmp/disk) && xl network-attach c2 $(vif $1 7 | tr , ' ') || return 1
	in_guest c2 30 'modprobe xen-blkfront; modprobe xen-netfront; wait_for 10 test -b /dev/xvdb && wait_for 10 test -e /sys/class/net/eth0 && dd if=/dev/xvdb of=/dev/null bs=64k count=4 2> /dev/null' || return 1
	xl block-detach c2 xvdb && xl network-detach c2 0 && no_devices /tmp/disk &&
		in_guest c2 20 'wait_for 10 test ! -b /dev/xvdb && wait_for 10 test ! -e /sys/class/net/eth0'
}
check the-first-devices eval 'attach 0 && attach 2'
remember
check $attaches-devices-come-and-go repeat $attaches 50 attach
check destroy eval 'xl destroy c2 && gone c2'
