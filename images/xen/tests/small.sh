# small.sh KIND MIB: a small driver domain of that kind (e1000e, nvme, ahci) lives in 48 MiB once it has booted, serves a guest whose data are
# checked, and does so again when another one has taken its place. That with a network card also serves a guest by netback.
kind=$1
mib=${2:-4}
limit=48
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
modprobe xen-pciback
case $kind in
e1000e) class=0x020000 ;;
nvme) class=0x0108 ;;
# That of the chipset itself stays.
ahci) class=0x0106 ;;
esac
device=$(devices class $class | grep -v ':1f\.')
check assignable-add xl pci-assignable-add $device
mkdir -p $logs /etc/tandem
: > $(log_of dd)

# looked_after SERVICE KIND: tandemd looks after dd, for that
looked_after() {
	printf '[service.%s]\nkind = "%s"\ndriver-domain = "dd"\n[service.%s.supervise]\nconfig = "/tmp/dd.cfg"\nback-off-ms = 100\n' $1 $2 $1 > /etc/tandem/tandemd.toml
}
# fits NAME: soon it has no more than the limit, and can go on with that; what it has is said
fits() {
	local pages told
	wait_for 30 eval "[ \$(held $1) -le $((limit * 256)) ]"
	pages=$(held $1)
	told=$(memory_of $1) || { echo "$told"; return 1; }
	say "small $kind $1 held_kib=$((pages * 4)) $told" > /dev/console
	[ $pages -gt 0 ] && [ $pages -le $((limit * 256)) ] && [ $(echo "$told" | sed -n 's/.*MemFree=\([0-9]*\).*/\1/p') -ge 512 ] && return
	echo "$pages pages, $told"
	return 1
}
# rests NAME: how often its timer interrupts it while nobody has work for it is said, and how much it is
rests() {
	local before after
	sleep 5
	before=$(ticks_of $1)
	sleep 20
	after=$(ticks_of $1)
	say "small $kind $1 timer interrupts $((${after#* } - ${before#* })) in $((${after% *} - ${before% *})) s" > /dev/console
	[ $((${after% *} - ${before% *})) -ge 20 ] && [ $((${after#* } - ${before#* })) -gt 0 ]
}

case $kind in
e1000e)
	small dd switch:$kind "pci=['$device,permissive=1']" "$(plug 2)"
	looked_after net network
	sed -i /^kind/d /etc/tandem/tandemd.toml
	up='it is the way out'
	config u1 "$(plug 3)"
	has() { plugged_address u1 3 && outside_answers u1 60; }
	right() { said 'net ok' u1 $((60 + mib * 8)) "nettest eth0 10.9.0.1 $mib 64" && said 'tcp ok' u1 $((60 + mib * 4)) "tcptest put 10.9.0.1 $mib" && said 'tcp ok' u1 $((60 + mib * 4)) "tcptest get 10.9.0.1 $mib"; }
	;;
*)
	small dd disk:$kind "pci=['$device,permissive=1']"
	looked_after disk disk
	up='it has the disks'
	case $kind in nvme) node=/dev/nvme0n1 ;; ahci) node=/dev/sda ;; esac
	config u1 "disk=['format=raw,vdev=xvda,access=rw,backend=disk,target=$node']"
	has() { in_guest u1 90 'modprobe xen-blkfront; wait_for 80 test -b /dev/xvda'; }
	right() { said 'disk ok' u1 200 "disktest /dev/xvda $mib 2"; }
	;;
esac
why() { tail -n 5 $daemon_log; tail -n 5 $(log_of dd); return 1; }
check tandemd-starts daemon_starts || exit
check it-starts-the-driver-domain daemon_said 1 "$up" || exit
check it-is-small fits dd
check a-guest-starts boot u1 || exit
check the-guest-is-served eval 'has || why'
check its-data-are-right eval 'right || why'
check it-is-still-small fits dd
# What it said when its device was taken away is nothing to the next one.
check destroyed eval 'xl destroy dd && : > $(log_of dd)'
check another-comes daemon_said 2 "$up" || exit
check and-is-small fits dd
check the-guest-is-served-again eval 'has || why'
check its-data-are-still-right eval 'right || why'
check the-other-is-still-small fits dd
check it-tells-of-its-timer rests dd
no_errors() { in_guest u1 10 'dmesg | grep -iE "i/o error|blkfront.*error|bug:|oops" || true' | tee /tmp/errors; ! grep -q . /tmp/errors; }
check the-guest-saw-no-error no_errors
check no-access-was-stopped no_dma_stopped
check frames-agree audit
# Warnings of the driver domain's kernel, which has nobody to tell.
its_console_is_clean() { ! grep -aE "WARNING|BUG:|multicall|Cannot" -A 24 $(log_of $1); }
check it-had-no-trouble its_console_is_clean dd
check the-guest-goes eval 'xl destroy u1 && gone u1'
service=$([ $kind = e1000e ] && echo net || echo disk)
check parked eval "twinctl park $service && gone dd 60"
check tandemd-ends daemon_ends

# The same without a tandemd, by stock back ends alone: what plug does for them.
remember
case $kind in
e1000e)
	small dv vifs:$kind "pci=['$device,permissive=1']"
	behind u2 dv 4
	has() { in_guest u2 30 'job_address 4'; }
	right() { said 'net ok' u2 $((60 + mib * 8)) "nettest eth0 10.9.0.1 $mib 64" && said 'tcp ok' u2 $((60 + mib * 4)) "tcptest get 10.9.0.1 $mib"; }
	;;
*)
	small dv disk:$kind "pci=['$device,permissive=1']"
	config u2 "disk=['format=raw,vdev=xvda,access=rw,backend=dv,target=$node']"
	has() { in_guest u2 60 'modprobe xen-blkfront; wait_for 50 test -b /dev/xvda'; }
	right() { said 'disk ok' u2 200 "disktest /dev/xvda $mib 2"; }
	;;
esac
why() { xenstore-ls /local/domain/$(xl domid dv)/backend; tail -n 5 $(log_of dv); return 1; }
check one-with-stock-back-ends boot dv || exit
check it-is-as-small fits dv
check a-guest-behind-it boot u2 || why || exit
check is-served eval 'has || why'
check and-its-data-are-right eval 'right || why'
check it-stays-small fits dv
check it-had-none-either its_console_is_clean dv
check the-guest-behind-it-goes eval 'xl destroy u2 && gone u2'
check its-nodes-go wait_for 20 no_node 'backend/(vif|vbd)/[1-9]'
check it-goes eval 'xl destroy dv && gone dv'
check nothing-stays nothing_stays
check frames-agree-at-the-end audit
check assignable-remove xl pci-assignable-remove $device
cat $daemon_log > /dev/console
