# chosen.sh MIB: two services say themselves what their driver domains are, and ask for kinds of devices: a network card, which is not there at first, and an
# nvme controller. Both serve a guest. Then the card goes and comes again: while nobody has it, and while its driver domain has it.
mib=$1
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
card=$(devices class 0x020000)
disk=$(devices class 0x0108)
mkdir -p $logs /etc/tandem
for name in dd dd-disk; do : > $(log_of $name); done

# section SERVICE KIND DRIVER DEVICE MODULE JOB
section() {
	small $3 $6:$5
	cat > /etc/tandem/$1.toml <<X
[service.$1]
kind = "$2"
driver-domain = "$3"
[service.$1.supervise]
device = "$4"
kernel = "/guest/vmlinux"
ramdisk = "/guest/small-$5.cpio"
memory-mib = 88
back-off-ms = 100
$(grep '^extra=' /tmp/$3.cfg | tail -n 1 | tr "'" '"')
X
	rm /tmp/$3.cfg
}
section net net dd network e1000e switch
section disk disk dd-disk nvme nvme disk

# says WORDS COMMAND...: it succeeds, and its output has these words
says() {
	local words=$1 out
	shift
	out=$("$@" 2>&1) || { echo "$out"; return 1; }
	grep -qF "$words" <<< "$out" || { echo "$out"; return 1; }
}
refuses_both() {
	local out
	sed 's/^device = .*/&\nconfig = "\/tmp\/dd.cfg"/' /etc/tandem/net.toml > /tmp/both.toml
	out=$(tandemd --config /tmp/both.toml --check 2>&1) && return 1
	grep -q 'config. and .device.: either' <<< "$out" || { echo "$out"; return 1; }
}
why() { tail -n 5 $daemon_log; tail -n 5 $(log_of dd) $(log_of dd-disk); return 1; }
pulled() { echo 1 > /sys/bus/pci/devices/$card/remove && [ ! -e /sys/bus/pci/devices/$card ]; }
found() { echo 1 > /sys/bus/pci/rescan && wait_for 10 test -e /sys/bus/pci/devices/$card; }
# It is somewhere, and that is what the driver domain is told.
has_registers() { head -n 1 /sys/bus/pci/devices/$card/resource | tee /tmp/registers; ! grep -q '^0x0* 0x0* ' /tmp/registers; }

check it-is-said-which-device-each-would-get eval "says 'net: \`network\` is $card' tandemd --check && says 'disk: \`nvme\` is $disk' tandemd --check"
check two-that-say-what-it-is-are-refused refuses_both
check the-card-is-not-there pulled
check that-is-a-warning says 'a device for `network`: not in the machine' tandemd --check
check tandemd-starts daemon_starts || exit
check the-disks-driver-domain-comes daemon_said 1 'it has the disks' || exit
check the-networks-waits daemon_said 1 'dd: a device for `network`: not in the machine'
check nobody-is-it eval '! xl domid dd 2> /dev/null'
check the-card-comes found
check and-is-chosen daemon_said 1 "dd: $card is its .network."
check the-networks-driver-domain-comes eval "daemon_said 1 'it is the way out' || why" || exit
check it-is-said-who-has-what eval "says 'has $card, as \`network\`' twinctl status && says '$disk, as \`nvme\`' tandemd --list"

config u1 "vif=['mac=00:16:3e:00:00:03,backend=net']" "disk=['format=raw,vdev=xvda,access=rw,backend=disk,target=/dev/nvme0n1']"
check a-guest-starts boot u1 || exit
has_card() { plugged_address u1 3 && outside_answers u1 60; }
streams_pass() { said 'tcp ok' u1 $((60 + mib * 4)) "tcptest put 10.9.0.1 $mib" && said 'tcp ok' u1 $((60 + mib * 4)) "tcptest get 10.9.0.1 $mib"; }
check it-has-the-network eval 'has_card || why'
check its-datagrams-are-right said 'net ok' u1 $((60 + mib * 8)) "nettest eth0 10.9.0.1 $mib 64"
check its-streams-are-right streams_pass
check it-has-the-disk in_guest u1 90 'modprobe xen-blkfront; wait_for 80 test -b /dev/xvda'
check its-blocks-are-right said 'disk ok' u1 200 "disktest /dev/xvda $mib 2"

# Nobody has it, and the hypervisor has put it aside.
check the-driver-domain-is-parked eval 'twinctl park net && gone dd 60'
check the-card-goes-while-nobody-has-it pulled
check and-comes-again found
check it-has-registers has_registers
: > $(log_of dd)
check it-may-run-again twinctl unpark net
check it-is-the-way-out-again eval "daemon_said 2 'it is the way out' || why" || exit
check the-guest-goes-on eval 'outside_answers u1 60 && streams_pass'

# Its driver domain has it, and dies of that.
: > $(log_of dd)
check the-card-goes-while-its-driver-domain-has-it pulled
check that-is-noticed daemon_said 1 'is gone from the machine'
check and-the-driver-domain-goes gone dd 60
check the-card-comes-back found
check it-has-registers-again has_registers
check the-same-card-is-the-way-out eval "daemon_said 3 'it is the way out' || why" || exit
check the-guest-still-goes-on eval 'outside_answers u1 60 && streams_pass'
check it-was-chosen-once eval "[ \$(grep -c 'is its .network.' $daemon_log) = 1 ]"

# A daemon that begins anew gives nobody another one.
check tandemd-is-killed daemon_ends
check and-starts daemon_starts
check it-remembers says "has $card, as \`network\`" twinctl status
check no-access-was-stopped no_dma_stopped
check frames-agree audit
cat $daemon_log > /dev/console
