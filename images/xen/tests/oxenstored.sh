# oxenstored.sh: the toolstack with the other implementation of the store, oxenstored: a guest's life with an interface and a disk.
truncate -s 16M /tmp/disk
check it-is-oxenstored eval 'pidof oxenstored && ! pidof xenstored'
config g1 'vif=["mac=00:16:3e:00:00:03,bridge=xenbr0"]' 'disk=["format=raw,vdev=xvda,access=rw,target=/tmp/disk"]'
# The first one makes what is made once.
check the-first eval 'boot g1 && xl destroy g1 && gone g1'
remember
check create-with-devices boot g1 || exit
check xenstore-ls eval 'xenstore-ls -f | grep -q "^/local/domain/$(xl domid g1)/name = \"g1\""'
check interface-works said '1 packets received' g1 40 'job_address 3; ping -c 1 -W 5 10.9.0.2'
check disk-works in_guest g1 40 'modprobe xen-blkfront; wait_for 10 test -b /dev/xvda; dd if=/dev/urandom of=/tmp/f bs=1M count=4 2> /dev/null; dd if=/tmp/f of=/dev/xvda bs=64k oflag=direct 2> /dev/null; dd if=/dev/xvda bs=1M count=4 iflag=direct 2> /dev/null | cmp - /tmp/f'
check rename eval 'xl rename g1 other && [ "$(xl domname $(xl domid other))" = other ] && xl rename other g1'
check block-detach eval 'xl block-detach g1 xvda && in_guest g1 20 "wait_for 10 test ! -b /dev/xvda"'
watched() {
	local watch
	xenstore-watch -n 2 @releaseDomain > /tmp/watched & watch=$!
	sleep 1
	timeout 60 xl shutdown -w g1 && wait_for 10 eval "! kill -0 $watch" && gone g1
}
check shutdown-is-seen-by-a-watch watched
check save eval 'boot g1 && xl save g1 /tmp/saved'
check restore eval 'xl restore /tmp/saved && said "^here$" g1 30 "echo here"'
check destroy eval 'xl destroy g1 && gone g1'
check no-node-stays wait_for 10 no_node 'vif/[1-9]|vbd/[1-9]|^/local/domain/[1-9]|^/libxl/[1-9]'
check nothing-stays nothing_stays
