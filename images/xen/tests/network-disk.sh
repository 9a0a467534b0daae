# network-disk.sh DRIVER MIB: the medium of a guest's disk is at the other end of a network. The driver domain of the disk, which has no device, reaches it through that of
# the network. Either of them dies while the guest writes blocks and reads them back, and both; and the network's rests for longer than a disk may take. The
# guest sees no error, and the host finds on the medium what it should.
driver=$1
mib=$2
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
take_nic
driving dd "pci=['$nic,permissive=1']" "$(plug 2)" \
	"extra='$kernel_args oops=panic iommu=soft swiotlb=4096 tandem.do=pci+bridge_switch:$driver+drive'"
driving dd-disk "$(plug 5)" "extra='$kernel_args oops=panic tandem.do=network_disk:5+drive'"
mkdir -p $logs /etc/tandem
for name in dd dd-disk; do : > $(log_of $name); done
# The disk's comes first, and needs what the other one makes. What waits may not wait for long, if it is the disk's fault.
for service in disk net; do
	name=dd
	[ $service = net ] || name=dd-disk
	printf '[service.%s]\nkind = "%s"\ndriver-domain = "%s"\n[service.%s.supervise]\nconfig = "/tmp/%s.cfg"\ncrashes = 20\nback-off-ms = 100\n' \
		$service $service $name $service $name > /etc/tandem/$service.toml
done
echo 'undrained-ms = 20000' >> /etc/tandem/disk.toml
refused() { ! tandemd --check 2> /tmp/refused && grep -q "$1" /tmp/refused || { cat /tmp/refused; return 1; }; }
check one-without-a-device-has-to-say-so refused 'one that works without says `pci = \[\]`'
echo 'pci=[]' >> /tmp/dd-disk.cfg
check and-then-is-right tandemd --check
echo 'standby = 1' >> /etc/tandem/disk.toml
check nobody-can-wait-for-its-place refused 'it has no device'
sed -i '/standby/d' /etc/tandem/disk.toml
check tandemd-starts daemon_starts || exit
check the-network-comes daemon_said 1 '^net: .*it is the way out' 200 || exit
check the-disks-driver-domain-comes daemon_said 1 '^disk: .*it has the disks' 200 || exit
config u1 "disk=['format=raw,vdev=xvda,access=rw,backend=disk,script=disk-plug,target=/dev/nbd0p1']"
check a-guest-starts boot u1 || exit
told() { tail -n 8 $daemon_log; tail -n 5 $(log_of dd-disk); return 1; }
has_disk() { in_guest u1 200 'modprobe xen-blkfront; wait_for 180 test -b /dev/xvda' || told; }
check the-guest-has-its-disk has_disk || exit

in_guest u1 10 "diskload /dev/xvda 0 $mib > /tmp/load 2>&1 &"
# goes_on: more was read and written, and nothing was wrong or failed
goes_on() { said '^state [0-9]* 0 0 0 ' u1 300 'goes_on disk 240' || told; }
check the-guest-reads-and-writes goes_on
dies() { echo 't1 echo c > /proc/sysrq-trigger' > $(tty_of $1); }
counts() { grep -c "$1" $daemon_log; }
# recovers NAME SERVICE...: these are back after the driver domain's, or the driver domains', death, and the guest goes on
recovers() {
	local name=$1 service
	shift
	for service in "$@"; do
		check $name-and-$service-is-back daemon_said $((${came[$service]} + 1)) "^$service: .*recovered, panicked" 200 || return
	done
	check $name-and-all-goes-on goes_on
}
declare -A came
count_all() { for service in net disk; do came[$service]=$(counts "^$service: .*recovered, panicked"); done; }

count_all
disks=$(xl domid dd-disk)
check the-networks-dies dies dd
recovers the-networks-dies net
check the-disks-does-not eval '[ "$(xl domid dd-disk)" = $disks ]'
count_all
check the-disks-dies dies dd-disk
recovers the-disks-dies disk
count_all
check both-die eval 'dies dd && dies dd-disk'
recovers both-die net disk

# The network rests for longer than a disk's driver domain may leave requests unanswered. One that comes meanwhile waits.
disks=$(xl domid dd-disk)
check the-network-rests eval 'twinctl park net && gone dd 60'
sleep 40
check nobody-blames-the-disks eval '[ "$(xl domid dd-disk)" = $disks ]'
count_all
check the-disks-dies-without-a-network dies dd-disk
check it-comes-again eval "wait_for 200 eval '[ \"\$(xl domid dd-disk)\" != $disks ] && grep -q \"network_disk waits\" $(log_of dd-disk)'"
check the-network-goes-on twinctl unpark net
recovers the-network-goes-on disk
check what-is-left-of-one-has-no-interface eval "! grep 'remains: connected' $daemon_log"
check nothing-else-failed eval "tandemd --list | tee /tmp/listed | grep -E '^disk: .*panicked 3, recovered 4\$'"

check the-blocks-are-right said 'disk ok' u1 300 "killall diskload; wait_for 280 grep '^disk' /tmp/load; tail -n 1 /tmp/load"
say "medium u1 $(in_guest u1 20 'tail -n 1 /tmp/load' | grep -o 'sum=.*')"
check the-guest-saw-no-error no_disk_errors
check no-access-was-stopped no_dma_stopped
check frames-agree audit

# The machine goes down: guests first, then all others at one time. None of them waits for the other one.
check the-guest-shuts-down eval 'timeout 120 xl shutdown -w u1 && gone u1 60'
check and-all-others timeout 120 xl shutdown -a -w
check they-rest eval "tandemd --list | tee /tmp/listed | grep -cE '^(net|disk): dd.* was shut down' | grep -x 2 || { cat /tmp/listed; false; }"
check assignable-remove xl pci-assignable-remove $nic
check tandemd-ends daemon_ends
cat $daemon_log > /dev/console
