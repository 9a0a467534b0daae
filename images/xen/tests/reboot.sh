# reboot.sh MOMENT DRIVER: domain 0 keeps what tandemd writes down on a disk. A driver domain is the switch's way out until all domains are shut down
# with the machine (`down`); when that has started anew (`up`) it comes by itself, and serves guests.
moment=$1
driver=$2
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
keeps_its_state() {
	local module
	for module in nvme crc32c_generic ext4; do modprobe $module || return 1; done
	wait_for 15 test -b /dev/nvme0n1 || return 1
	[ $moment = up ] || mke2fs -F /dev/nvme0n1 || return 1
	mkdir -p /var/lib/tandem
	mount /dev/nvme0n1 /var/lib/tandem
}
# As Debian's xendomains: all are told, and then each is waited for by its name.
all_go() {
	local domains id name
	domains=$(xl list | awk 'NR > 1 && $2 > 0 { print $2, $1 }')
	while read -r id name; do xl shutdown $id; done <<< "$domains"
	while read -r id name; do gone $name 120 || { xl list; return 1; }; done <<< "$domains"
}
was_off() { grep -q '^mode = "off"' /var/lib/tandem/net.toml || { cat /var/lib/tandem/net.toml; return 1; }; }

check domain-0-keeps-its-state-on-a-disk keeps_its_state || exit
take_nic
driving dd "pci=['$nic,permissive=1']" "$(plug 2)" "extra='$kernel_args iommu=soft swiotlb=4096 tandem.do=pci+bridge_switch:$driver+drive'"
mkdir -p $logs
: > $(log_of dd)
supervised 'ready-s = 300'
[ $moment = down ] || check it-was-off-when-the-machine-went-down was_off
check tandemd-starts daemon_starts || exit
check the-driver-domain-comes-by-itself daemon_said 1 'it is the way out' 300
config u1 "$(plug 3)"
check a-guest-starts boot u1 || exit
check address plugged_address u1 3
check the-outside-answers outside_answers u1 60
check packets-arrive said 'net ok' u1 120 "$keeps && nettest eth0 10.9.0.1 1 64"
if [ $moment = down ]; then
	# Here nobody but this says that the machine goes down.
	printf '#!/bin/bash\n[ "$1" != show ] || echo deactivating\n' > /usr/bin/systemctl
	chmod 755 /usr/bin/systemctl
	check all-domains-are-shut-down all_go
	check and-that-is-written-down wait_for 10 was_off
	kill $(cat /tmp/tandemd.pid)
	check tandemd-is-ended wait_for 10 eval '! pidof tandemd'
	check the-disk-is-let-go umount /var/lib/tandem
else
	check destroy-the-guest eval 'xl destroy u1 && gone u1'
	check tandemd-is-killed daemon_ends
fi
cat $daemon_log > /dev/console
