package kernellog

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Record is one message of the kernel's log.
type Record struct {
	// Sequence numbers the records of one boot of the machine, each one higher than the one before.
	Sequence uint64
	// At is when it was logged: the time since the boot, without that which the machine has slept, to the microsecond.
	At time.Duration
	// Kernel is true of what the kernel itself has logged, and false of what a process has written into its log.
	Kernel bool
	// Message is the text. A byte of it that cannot be printed is written \x0a, as the kernel does it.
	Message string
}

// facilityShift is how far to the left the facility is in the number of priority and facility; 0 is the kernel's, which no process
// can write.
const facilityShift = 3

// Parse reads a record as one read of /dev/kmsg gives it, see Documentation/ABI/testing/dev-kmsg of the kernel:
//
//	6,339,5140900,-[,MORE];MESSAGE
//	 KEY=VALUE
//
// These are priority and facility, sequence number, microseconds, flags, then the message, and lines that say more of it, which are
// left out. It fails for anything else, with a part of what it was given.
func Parse(raw string) (Record, error) {
	prefix, text, ok := strings.Cut(raw, ";")
	fields := strings.Split(prefix, ",")
	const least = 4
	if !ok || len(fields) < least {
		return Record{}, malformed(raw)
	}
	priority, err := strconv.ParseUint(fields[0], 10, 32)
	if err != nil {
		return Record{}, malformed(raw)
	}
	sequence, err := strconv.ParseUint(fields[1], 10, 64)
	if err != nil {
		return Record{}, malformed(raw)
	}
	at, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil || at < 0 || at > int64(maxAt/time.Microsecond) {
		return Record{}, malformed(raw)
	}
	message, _, _ := strings.Cut(text, "\n")
	return Record{Sequence: sequence, At: time.Duration(at) * time.Microsecond, Kernel: priority>>facilityShift == 0, Message: message}, nil
}

// maxAt is the longest time that can be said, 292 years.
const maxAt = time.Duration(math.MaxInt64)

// malformed says what is no record, without all of it.
func malformed(raw string) error {
	const shown = 64
	return fmt.Errorf("%.*q is no record of the kernel's log", shown, raw)
}
