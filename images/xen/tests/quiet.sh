# quiet.sh DRIVER WAY MODE SECONDS: three guests are as busy as they can be for so long, by a driver domain that is looked after with the limits that
# hold if nothing is said. Nothing is wrong with it, and nobody takes it for one that has failed. WAY is one of dying.sh's.
driver=$1 way=$2 mode=$3 seconds=$4
keeps_link= causes=
guests='u1 u2 u3'
story=quiet
rest_ms=0
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
. /xen/dying.sh

mib=8
node_of() { if [ $driver = nvme ]; then echo /dev/nvme0n1p${1#u}; else echo /dev/sda${1#u}; fi; }
disk_loads() { in_guest $1 20 "diskload /dev/xvda 0 $mib > /tmp/load 2>&1 &"; }
disk_ends() {
	local guest
	for guest in $guests; do
		check blocks-of-$guest-are-right said 'disk ok' $guest 200 "killall diskload; wait_for 180 grep '^disk' /tmp/load; tail -n 1 /tmp/load"
		check $guest-saw-no-error no_disk_errors $guest
	done
}

# usual_limits: what is said for those that die on purpose is not said
usual_limits() {
	sed -i -E '/^(overdue-ms|crashes|within-s|back-off-ms) =/d' /etc/tandem/tandemd.toml
	twinctl reload
}
# nobody_failed: it is the same instance as ever, and nothing was counted but that it came
nobody_failed() {
	tandemd --list | tee /tmp/listed
	[ "$(xl domid dd)" = $first ] || { echo "it was domain $first"; return 1; }
	! grep -E 'has (panicked|failed)|started again|is (wedged|overdue|silent)|parked' $daemon_log || return 1
	sed -n "s/^$kind: dd is to run; //p" /tmp/listed | grep -x 'recovered [12]'
}

${kind}_machine
must 'the limits cannot be changed' usual_limits
waits 1
streams=([1]='put get put' 'get put get' 'put get')
for n in 1 2 3; do ${kind}_loads u$n ${streams[n]}; done
must 'the loads do not begin' goes_on
first=$(xl domid dd)
until=$(($(now_s) + seconds)) rounds=0
while [ $(now_s) -lt $until ]; do
	must 'not all goes on' goes_on
	rounds=$((rounds + 1))
	for what in '2 connection-was-lost' '3 byte-was-wrong' '4 request-failed'; do
		[ $(total now ${what% *}) = 0 ] || quit "a ${what#* }"
	done
	nap 5
done
say "quiet s=$seconds rounds=$rounds"
check nobody-is-taken-for-one-that-has-failed nobody_failed
${kind}_ends
dying_ends
