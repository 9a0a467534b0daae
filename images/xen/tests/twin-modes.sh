# twin-modes.sh DRIVER: the operator says which way guests' packets go, while they go: by a twin of the driver domain's driver or by Linux
# in it. A twin that is aborted says where, and Linux goes on. What makes no sense is refused in words.
driver=$1
. /xen/driving.sh
. /xen/switching.sh
. /xen/twinning.sh
take_nic
mkdir -p /etc/tandem
printf '[service.net]\ndriver-domain = "dd"\n[metrics]\naddress = "127.0.0.1:9740"\n' > /etc/tandem/tandemd.toml
ifconfig lo 127.0.0.1 up
check without-a-daemon refuses 'nobody serves' status
check tandemd-starts daemon_starts || exit
remember
check a-service-that-is-not-there refuses 'there is no service nat: there is net' status nat
check a-driver-domain-that-does-not-run refuses 'does not run' mode net vm
# says WORDS [ARGUMENT...]: twinctl says that
says() {
	local words=$1
	shift
	twinctl "${@:-status}" > /tmp/told 2>&1
	cat /tmp/told
	grep -qE "$words" /tmp/told
}
check there-is-no-way-out says '^net: no way out; dd is to be it'

config u1 "$(plug 3)"
# Nobody but twins has the CPUs that come beside the first two.
driving dd "pci=['$nic,permissive=1']" "$(plug 2)" 'vcpus=2' 'maxvcpus=4'
check a-driver-domain-drives-the-nic drives || { cat $daemon_log; exit; }
check a-guest-starts boot u1 || exit
check address plugged_address u1 3
check the-outside-answers outside_answers u1
check linux-is-the-way says '^net: vm, by dd'
check and-there-is-no-twind says 'no twind runs in the driver domain'
check without-twind refuses 'no twind runs' mode net twin-mirror

in_guest dd 60 'job_twin_module damage=1; job_twind --interface eth0 --mode vm'
check the-twin-is-loaded wait_for 120 says 'eth0 .*: vm, twin 0 of'
# Linux would use buffers for other packets that are lent, of those that the driver has.
merges() { said "generic-receive-offload: $1" dd 20 'ethtool -k eth0'; }
check linux-merges-packets merges on
check a-stream-without-an-end endless u1
goes() { twinctl mode net $1 && says "^net: $1, by dd" && moves u1; }
check the-twin-has-the-card-first goes twin-mirror
check linux-does-not-merge-packets merges off
in_guest dd 20 'ethtool -K eth0 gro on'
check nor-when-it-is-told-to merges off
for n in 1 2 3 4 5; do
	check "round-$n-by-the-twin" goes twin-mirror
	check "round-$n-by-linux" goes vm
done
# When something was received into all that the twin has put into the driver's rings.
in_guest u1 60 'ping -q -c 500 -i 0.02 10.9.0.1 > /dev/null'
check linux-merges-packets-beside-a-twin wait_for 60 merges on
check in-the-driver-domain-too said 'eth0 .*: twin-mirror, twin' dd 60 'twinctl mode eth0 twin-mirror'
check the-twin-has-the-card says '^net: twin-mirror, by dd'
check what-it-counts says '[1-9][0-9]* packets sent' stats net
check a-screen says '[1-9][0-9]* cycles/packet' top net --count 1
check a-screen-in-the-driver-domain said 'cycles/packet' dd 60 'twinctl top --count 1'
# The host reads these as JSON, and as Prometheus does.
say "json $(twinctl --json status net | tr -d '\n')"
say "json $(twinctl --json status nat | tr -d '\n')"
scraped() { wget -q -O /tmp/metrics http://127.0.0.1:9740/metrics && grep -qE '^tandem_twin_turns_total\{service="net"\} [1-9]' /tmp/metrics && grep 'mode="twin-mirror"} 1' /tmp/metrics; }
check metrics-can-be-asked-for scraped

check a-mode-that-is-none refuses 'there is no mode fast' mode net fast
check a-command-that-is-none refuses 'there is no command fly' fly net
check an-interface-that-is-not-there refuses 'no interface eth7' load net eth7
check an-interface-that-is-no-devices refuses 'not the interface of a PCI device' load net lo
check a-second-daemon said 'another one serves' dd 60 'twind --interface eth0 2>&1'
check loaded-again-in-traffic eval 'twinctl load net && moves u1'
check unloaded-in-traffic eval 'twinctl unload net && says "^net: vm" && says "no twin is loaded" && moves u1'
check linux-merges-packets-again merges on
check and-loaded-when-it-is-wanted goes twin-mirror
# Where the interface would not come back as it was, or does not go from, it stays.
in_dd() { in_guest dd 20 "$@"; }
check by-linux-again goes vm
check its-bridge-filters-vlans in_dd 'echo 1 > /sys/class/net/xenbr0/bridge/vlan_filtering'
check it-stays-there refuses 'a bridge that filters VLANs' mode net twin-mirror
check the-stream-goes-on-by-that-bridge moves u1
check no-vlans-any-more in_dd 'echo 0 > /sys/class/net/xenbr0/bridge/vlan_filtering'
check the-twin-has-the-card-without wait_for 20 says '^net: twin-mirror, by dd'
check and-linux-has-it-back goes vm
check a-console-sends-by-it in_dd 'modprobe netconsole netconsole=6665@10.9.0.2/xenbr0,6666@10.9.0.1/'
check not-beside-a-console refuses 'a console sends by the interface' mode net twin-mirror
check the-console-goes in_dd 'modprobe -r netconsole'
check the-twin-has-the-card-after-it wait_for 20 says '^net: twin-mirror, by dd'
check linux-is-to-have-it-again goes vm
check it-has-another-user in_dd 'modprobe macvlan && ip link set eth0 nomaster && ip link add link eth0 name other type macvlan'
check which-keeps-it refuses 'something else of this domain.s has the interface' mode net twin-mirror
check the-other-one-goes in_dd 'ip link del other && ip link set eth0 master xenbr0'
check the-twin-has-the-card-from-the-bridge eval "wait_for 20 says '^net: twin-mirror, by dd' && moves u1"

# What a driver is told not to give to its card the twin does not either.
segments() { in_guest dd 20 "ethtool -S eth0 | sed -n 's/^ *tx_tcp_seg_good: //p'" | grep -E '^[0-9]+$'; }
# cuts: packets that the card has cut while a megabyte left the guest
cuts() {
	local before=$(segments) after
	moves u1 > /dev/null || return 1
	after=$(segments)
	echo $((after - before))
}
check the-card-cuts-packets eval '[ $(cuts) -gt 10 ]'
check it-is-not-to in_guest dd 20 'ethtool -K eth0 tso off'
check the-twin-has-the-card-then wait_for 20 says '^net: twin-mirror, by dd'
same it-cuts-none 0 "$(cuts)"
check it-may-again in_guest dd 20 'ethtool -K eth0 tso on'
check the-twin-has-it-then wait_for 20 says '^net: twin-mirror, by dd'
check the-card-cuts-again eval '[ $(cuts) -gt 10 ]'

# To a twin of the other mode from each way, and from it to each.
check from-mirror-to-stlb goes twin-stlb
check from-stlb-to-linux goes vm
check from-linux-to-stlb goes twin-stlb
check from-stlb-to-mirror goes twin-mirror

# What the twin works on is damaged. The driver itself sees nothing of it.
# The stream waits for answers meanwhile; these do not.
in_guest u1 10 '(ping -i 0.05 10.9.0.1 > /dev/null 2>&1 &)'
# falls MODE: the twin of that mode does
falls() {
	check the-twin-is-damaged-$1 twinctl damage net
	check it-says-where-$1 wait_for 20 says "aborted .* at .*[a-z]\+0x[0-9a-f]+: it accessed memory"
	twinctl status | while read -r line; do say "$line"; done
	check linux-is-the-way-again-$1 says '^net: vm, by dd'
	check the-same-stream-goes-on-by-linux-$1 moves u1
	check the-aborted-twin-is-loaded-again-$1 eval "twinctl load net && says '^net: $1, by dd'"
	check the-same-stream-goes-on-by-the-twin-$1 moves u1
}
falls twin-mirror
check to-stlb-again goes twin-stlb
falls twin-stlb

check twind-is-told-to-end in_guest dd 60 'kill $(cat /tmp/twind.pid); wait_for 20 grep -q "twind: ended" /tmp/twind'
check linux-is-the-way-at-the-end eval 'wait_for 20 says "^net: vm" && says "no twind runs"'
check the-same-stream-goes-on-at-the-end moves u1
check no-warnings no_warnings
check no-access-was-stopped no_dma_stopped
check frames-agree audit
twin_machine_ends u1
