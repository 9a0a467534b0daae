# upgrade.sh DRIVER MIB: a driver domain of another image takes the place of the old one, if it is of use. A guest's stream only waits.
driver=$1
mib=${2:-4}
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
supervised_machine standby:$driver || exit
supervised 'crashes = 20' 'back-off-ms = 100'
check tandemd-starts-again daemon_starts || exit
check it-is-the-way-out daemon_said 1 'recovered, started'
config u1 "$(plug 3)"
check a-guest-starts boot u1 || exit
check address plugged_address u1 3
check the-outside-answers outside_answers u1 60
check a-stream-without-an-end streams

# words JOBS: a command line of a driver domain's kernel
words() { echo "$kernel_args oops=panic iommu=soft swiotlb=4096 tandem.do=$1"; }
# stays NAME WORDS OPTION...: the image is refused in these words, the old one is there still, and the stream with it
stays() {
	local name=$1 words=$2 domid=$(xl domid dd)
	shift 2
	check $name-is-refused refuses "$words" upgrade net "$@"
	check $name-changes-nothing eval "[ $domid = \"\$(xl domid dd)\" ]"
	check $name-is-cleared-away gone dd-upgrade 60
	check $name-and-the-stream-goes-on moves u1
}
stays no-kernel '/boot/nothing' --kernel /boot/nothing
stays an-empty-ramdisk 'empty' --ramdisk /dev/null
echo 'no kernel at all' > /tmp/nonsense
stays nonsense 'the upgrade is refused: the new one: ' --kernel /tmp/nonsense
stays without-a-root 'ended while it booted' --extra "$(words drive) rdinit=/nothing panic=1"
status() { twinctl status net > /tmp/status; grep -q "$1" /tmp/status || { cat /tmp/status; return 1; }; }
check it-is-said-later status 'the last upgrade was refused: the new one has ended'

# One that boots, and dies when it gets the NIC: the old image comes back.
ways=$(grep -c 'it is the way out' $daemon_log)
check one-that-dies-of-the-nic-is-refused refuses 'of the new one: its kernel has panicked' upgrade net --extra "$(words dies_of_nic)"
check and-the-old-image-comes-back daemon_said $((ways + 1)) 'it is the way out' 240
check the-same-stream-goes-on moves u1
# runs WORDS: its kernel was told so
runs() { in_guest dd 20 'cat /proc/cmdline' | grep -q "$1"; }
# console NAME: what dd says goes where it went when it had that name
console() { [ $1 = dd ] && rm -f $(log_of dd) || ln -sf $(log_of $1) $(log_of dd); }
check with-the-old-words eval 'runs standby && ! runs mark=2'

check one-of-use-takes-the-place twinctl upgrade net --extra "$(words standby:$driver+drive) mark=2"
tail -n 3 $daemon_log > /dev/console
console dd-upgrade
check with-the-new-words runs mark=2
check and-the-same-stream-goes-on moves u1
check it-is-shown status 'upgraded to extra=.*mark=2'
check it-was-handed-over daemon_said 1 'recovered, upgrade: .*handed over .*first packet in'
console dd
recovers a-panic 'has panicked' eval "tell_dd 'echo c > /proc/sysrq-trigger'"
check it-comes-back-of-the-new-image runs mark=2

# The daemon is killed while the new one boots; the next one goes on.
upgrades=$(grep -c ': upgraded' $daemon_log)
(twinctl upgrade net --as-configured > /tmp/upgrade 2>&1; echo $? >> /tmp/upgrade) &
check the-next-one-boots wait_for 60 xl domid dd-upgrade
check tandemd-is-killed daemon_ends
check the-next-tandemd daemon_starts
check goes-on daemon_said $((upgrades + 1)) ': upgraded' 180
check who-waits-for-it-hears-of-it eval 'wait_for 60 grep -qx 0 /tmp/upgrade || { cat /tmp/upgrade; false; }'
console dd-upgrade
check as-configured eval 'runs standby && ! runs mark=2'
check and-still-the-same-stream moves u1
check no-access-was-stopped no_dma_stopped

check packets-go-on said 'net ok' u1 120 "$keeps && nettest eth0 10.9.0.1 $mib 64"
check streams-go-on said 'tcp ok' u1 $((60 + mib * 4)) "tcptest get 10.9.0.1 $mib"
check shut-down-by-the-operator eval 'twinctl park net && gone dd 60'
check destroy-the-guest eval 'xl destroy u1 && gone u1'
supervised_machine_ends
