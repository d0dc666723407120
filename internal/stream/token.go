package stream

import (
	"strconv"
	"strings"
)

// token is the content of a resume token. Its text is EPOCH/REVISION, or EPOCH/REVISION.SILENT if silent is not 0.
type token struct {
	// epoch is that of the run, with unsureMark if it applies.
	epoch string
	place
}

// place is how much of a run the holder of a token knows.
type place struct {
	// rev is the revision of the last change that the holder has received.
	rev uint64
	// silent is the number of calls of Edge.Moved between that change and the holder's snapshot.
	silent uint64
}

func tokenOf(epoch string, rev, silent uint64) []byte {
	text := strconv.AppendUint([]byte(epoch+"/"), rev, 10)
	if silent > 0 {
		text = strconv.AppendUint(append(text, '.'), silent, 10)
	}
	return text
}

// parse reads a token; ok is false for one that no publisher has made.
func parse(text []byte) (t token, ok bool) {
	epoch, place, found := strings.Cut(string(text), "/")
	number, silent, moved := strings.Cut(place, ".")
	t.epoch = epoch
	var errRev, errSilent error
	t.rev, errRev = strconv.ParseUint(number, 10, 64)
	if moved {
		t.silent, errSilent = strconv.ParseUint(silent, 10, 64)
	}
	return t, found && errRev == nil && errSilent == nil
}

// isIn reports whether the holder of a token knows of no more than what was known at another one, after the same event.
func (t token) isIn(known []byte) bool {
	k, ok := parse(known)
	return ok && t.epoch == k.epoch && t.rev == k.rev && t.silent <= k.silent
}

// SameEvent reports whether two tokens were taken after the same event of the same run.
func SameEvent(a, b []byte) bool {
	x, okX := parse(a)
	y, okY := parse(b)
	return okX && okY && x.epoch == y.epoch && x.rev == y.rev
}
