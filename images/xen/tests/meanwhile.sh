# meanwhile.sh DRIVER SEED MOMENTS WHAT...: while a driver domain dies and another one boots, a guest, g1, is saved and restored, migrated, paused, destroyed
# and made anew, or one more of its devices comes or goes; or tandemd, xenconsoled or xenstored is another one from then on. Each of that begins when the old
# one has just died, when the new one is there, or when that has its device: at one of these moments, by the seed, or with MOMENTS 3 at each in its turn. xl
# says that it is done before long, g1 goes on, and what two other guests do all the time loses no connection and no byte.
driver=$1 seed=$2 moments=$3
shift 3
way=fresh mode=vm keeps_link= story=meanwhile causes=
guests='u1 u2'
# More than one processor can emulate would only make all of it slow.
rest_ms=500
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
. /xen/dying.sh

# Where a guest's console goes: one that was moved has the log of the name that it came with. Checks run in subshells, so it is in a file.
log_of() { if [ $1 = g1 ]; then echo $logs/guest-$(cat /tmp/g1.log).log; else echo $logs/guest-$1.log; fi; }
echo g1 > /tmp/g1.log

# Each guest has a partition: blocks of u1 and of g1, each in another half of its own, and files of u2.
mib=8
declare -A partition=([u1]=1 [g1]=2 [u2]=3)
node_of() { echo /dev/nvme0n1p${partition[$1]}; }
disk_of() { echo "format=raw,vdev=$1,access=$2,backend=disk,script=disk-plug,target=$3"; }
disk_loads() {
	case $1 in
	u1) in_guest u1 20 "diskload /dev/xvda 0 $mib > /tmp/load 2>&1 &" ;;
	u2)
		must 'the file system cannot be mounted' in_guest u2 60 'modprobe crc32c_generic; modprobe ext4; mkdir /mnt; mount -t ext4 /dev/xvda /mnt'
		in_guest u2 20 'fileload /mnt 64 > /tmp/load 2>&1 &'
		;;
	g1) in_guest g1 20 "diskload /dev/xvda $mib $mib > /tmp/load 2>&1 &" ;;
	esac
}
# What the host is to find on the medium is said, too.
disk_ends() {
	local guest
	for guest in u1 g1; do
		check blocks-of-$guest-are-right said 'disk ok' $guest 200 "killall diskload; wait_for 180 grep '^disk' /tmp/load; tail -n 1 /tmp/load"
		say "medium $guest $(in_guest $guest 20 'tail -n 1 /tmp/load' | grep -o 'sum=.*')"
	done
	check files-are-right said 'files ok' u2 200 "killall fileload; wait_for 180 grep '^files' /tmp/load; tail -n 1 /tmp/load"
	in_guest u2 60 "grep '^file ' /tmp/load" | grep '^file ' | while read -r line; do say "medium $line"; done
	check the-file-system-is-unmounted in_guest u2 60 'umount /mnt'
	for guest in $guests g1; do check $guest-saw-no-error no_disk_errors $guest; done
}

# g1_comes: it is made, and has its device when there is a driver domain
g1_comes() {
	echo g1 > /tmp/g1.log
	if [ $kind = net ]; then config g1 "$(plug 5)"; else config g1 "disk=['$(disk_of xvda rw $(node_of g1))']"; fi
	boot g1
}
g1_works() {
	if [ $kind = net ]; then
		plugged_address g1 5 && outside_answers g1 60 && net_loads g1 put get
	else
		in_guest g1 90 'modprobe xen-blkfront; wait_for 80 test -b /dev/xvda' && disk_loads g1
	fi
}
# g1_goes_on: all that it does; it has lost no connection, and nothing was wrong or failed
g1_goes_on() { said '^state [0-9]* 0 0 0 ' g1 $patience_s "goes_on $kind $((patience_s - 60))"; }

# nothing_of DOMID: no domain, no device and no node of a guest that was there is left
nothing_of() { wait_for 30 eval "! xl list $1 && no_node '^/local/domain/$1[ /]|^/local/domain/[0-9]*/backend/[a-z]*/$1[ /]|^/libxl/$1[ /]'" && return; xl list; xenstore-ls -f | grep -E "/$1[ /]"; return 1; }
left() { xl domid g1 > /tmp/g1.id; }

# What is done, and what is to be so when all is over. The limits of xl's commands are for what hangs: on a busy host it takes its time.
do_saved() { left && timeout 600 xl save g1 /tmp/g1.save && gone g1 && nothing_of $(cat /tmp/g1.id) && echo g1 > /tmp/g1.log && timeout 600 xl restore /tmp/g1.save && rm /tmp/g1.save; }
ends_saved() { g1_goes_on; }
do_moved() { left && timeout 900 xl migrate -s '' g1 'xl migrate-receive' && echo g1--incoming > /tmp/g1.log && [ "$(xl domid g1)" != $(cat /tmp/g1.id) ] && nothing_of $(cat /tmp/g1.id); }
ends_moved() { g1_goes_on; }
# For two seconds, or until all is over.
do_rested() { timeout 300 xl pause g1 && nap 2 && timeout 300 xl unpause g1; }
ends_rested() { g1_goes_on; }
do_paused() { timeout 300 xl pause g1 && xl list g1 | tail -n 1 | grep -q -- '--p---'; }
ends_paused() { timeout 300 xl unpause g1 && g1_goes_on; }
do_destroyed() { left && timeout 300 xl destroy g1 && gone g1 && nothing_of $(cat /tmp/g1.id) && g1_comes; }
ends_destroyed() { g1_works && g1_goes_on; }
net_attach() { timeout 300 xl network-attach g1 mac=00:16:3e:00:00:15 backend=net; }
net_attached() { in_guest g1 60 'wait_for 20 test -e /sys/class/net/eth1 && echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore && ifconfig eth1 10.9.0.25 netmask 255.255.255.255 up && wait_for 40 ping -I eth1 -c 1 -W 1 10.9.0.1'; }
net_detach() { timeout 300 xl network-detach g1 1; }
net_detached() { in_guest g1 60 'wait_for 20 test ! -e /sys/class/net/eth1' && [ "$(xl network-list g1 | wc -l)" = 2 ] && no_node "/vif/$(xl domid g1)/1[ /]"; }
disk_attach() { timeout 300 xl block-attach g1 "$(disk_of xvdb r $(node_of u1))"; }
disk_attached() { in_guest g1 120 'wait_for 80 test -b /dev/xvdb && dd if=/dev/xvdb of=/dev/null bs=64k count=16 iflag=direct'; }
# xl waits for ten seconds until the guest's front end lets the disk go, which may take longer on a busy host; then it is told once more.
disk_detach() { timeout 300 xl block-detach g1 xvdb || { nap 10; timeout 300 xl block-detach g1 xvdb; }; }
disk_detached() { in_guest g1 60 'wait_for 20 test ! -e /sys/block/xvdb' && [ "$(xl block-list g1 | wc -l)" = 2 ] && no_node "/vbd/$(xl domid g1)/51728[ /]"; }
do_attached() { ${kind}_attach; }
ends_attached() { ${kind}_attached && ${kind}_detach && ${kind}_detached && g1_goes_on; }
before_detached() { ${kind}_attach && ${kind}_attached; }
do_detached() { ${kind}_detach && ${kind}_detached; }
ends_detached() { g1_goes_on; }

# Who looks after all of it ends, and another one comes. A store goes on in place.
do_tandemd() {
	local each
	# Without what is read here.
	daemon_ends && nap 1 && (for each in $daemon_hears ${hears[@]}; do exec {each}<&-; done; daemon_starts)
}
ends_tandemd() { g1_goes_on; }
do_consoles() {
	kill $(cat /run/xen/xenconsoled.pid) && wait_for 10 eval '! pidof xenconsoled' && nap 1 && xenconsoled --log=guest --log-dir=$logs --pid-file=/run/xen/xenconsoled.pid
	# Where they are is written anew.
	wait_for 20 eval '[ -c $(tty_of u1) ] && [ -c $(tty_of u2) ] && [ -c $(tty_of g1) ]'
}
ends_consoles() { g1_goes_on; }
# Debian's xenstored (4.17) ends if a domain is being created meanwhile: it does not restore nodes of one that is not introduced yet ("Accounting called for non-existing domain").
# So the next one is there first.
do_store() {
	local asks exe=$(readlink /proc/$(pidof xenstored)/exe)
	wait_for 120 until_given || return 1
	timeout 300 xenstore-control live-update -t 30 $exe &
	asks=$!
	# Nobody can end who waits in the kernel for an answer.
	wait_for 320 eval "! kill -0 $asks" || { tell_of xenstored xenstore-control tandemd; return 1; }
	wait $asks || return 1
	timeout 60 xenstore-exists /local || { tell_of xenstored tandemd; return 1; }
	tr '\0' ' ' < /proc/$(pidof xenstored)/cmdline | tee /tmp/store && grep -q -e '-U' /tmp/store
}
# tell_of NAME...: where these programs are
tell_of() {
	local pid
	for pid in $(pidof "$@"); do (cd /proc/$pid && head -n 40 comm cmdline status syscall stack && ls -l fd && head fdinfo/*); done > /dev/console 2>&1
	# Where each process waits, and who was ended by a signal.
	echo 1 > /proc/sys/kernel/sysrq && echo w > /proc/sysrq-trigger
	{ for pid in "$@"; do echo "$pid: $(pidof $pid)"; done; dmesg | tail -n 5; } > /dev/console
}
ends_store() { g1_goes_on; }

# until_died, until_created, until_given: what is to be so at these moments. $dd is who has died.
until_died() { [ "$(grep -c 'has panicked' $daemon_log)" -gt $panics ]; }
until_created() { id=$(xl domid dd) && [ $id != $dd ]; }
until_given() { until_created && grep -qE 'TANDEM: (pci |standby waits)' $logs/guest-dd.log; }

# meanwhile WHAT MOMENT
meanwhile() {
	local lost name=$1-when-another-one-was-$2 came guest ended dd panics id at try
	[ $2 != died ] || name=$1-when-it-had-$2
	[ $1 != detached ] || must "before $name: no device" before_detached
	for try in 1 2 3; do
		dd=$(xl domid dd) panics=$(grep -c 'has panicked' $daemon_log)
		count_recoveries
		came=$recoveries
		: > $logs/guest-dd.log
		tell_dd 'echo c > /proc/sysrq-trigger'
		must "$name: that does not come" within $patience_s until_$2
		count_recoveries
		[ $recoveries != $came ] || break
		# It was faster than we look. What is meant to come amid a recovery comes in the next one.
		[ $try != 3 ] || quit "$name: it was too late"
		must "$name: not all goes on" goes_on
	done
	at=$(now_s)
	# Not in check's subshell: what this shell has started would be there until it has heard of its end.
	do_$1 > /tmp/done 2>&1
	ended=$?
	check $name eval 'cat /tmp/done; [ $ended = 0 ]'
	count_recoveries
	[ $1 != consoles ] || for guest in $guests; do ttys[$guest]=$(tty_of $guest); done
	say "meanwhile $name: s=$(($(now_s) - at)), $((recoveries - came)) recovered by then"
	must "$name: it does not come back" comes_back panic $came
	check $name-goes-on ends_$1 || { tells ${kind}_told; tells in_guest g1 60 'dmesg | tail -n 8; tail -n 3 /tmp/load /tmp/ended'; }
	must "$name: not all goes on" goes_on
	for lost in '2 connection-was-lost' '3 byte-was-wrong' '4 request-failed'; do
		[ $(total now ${lost% *}) = 0 ] || quit "$name: a ${lost#* }"
	done
}

${kind}_machine
must 'no g1' g1_comes
must 'it does not work' g1_works
# Further disks may be there at a time: g1's, that of who it becomes when it is moved, and the one that comes and goes.
[ $kind = net ] || remember_less $(((1288 + 16) * 3))
${kind}_loads u1 put get
${kind}_loads u2 get put
must 'the loads do not begin' goes_on
n=$seed
for what in "$@"; do
	all=(died created given)
	for ((i = 0; i < moments; i++)); do meanwhile $what ${all[(n + i) % 3]}; done
	n=$((n + 1))
done
check frames-agree audit
${kind}_ends
check g1-goes eval 'xl destroy g1 && gone g1'
dying_ends
