package oom

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Record is one message of the kernel's log.
type Record struct {
	// Sequence is the number of the record. It increases during one boot of the machine.
	Sequence uint64
	// At is the time of the record: the time since boot without the time in suspend, with a resolution of microseconds.
	At time.Duration
	// Kernel is true for a record of the kernel itself, and false for one that a process wrote to the log.
	Kernel bool
	// Message is the text. The kernel writes a byte that cannot be printed as \x0a.
	Message string
}

// facilityShift is the position of the facility in the number of priority and facility. Facility 0 is the kernel's; no
// process can write it.
const facilityShift = 3

// ParseRecord parses a record as one read of /dev/kmsg returns it, see Documentation/ABI/testing/dev-kmsg of the
// kernel:
//
//	6,339,5140900,-[,MORE];MESSAGE
//	 KEY=VALUE
//
// The fields are priority and facility, sequence number, microseconds and flags, then the message. The lines of keys
// and values are ignored. The error for any other text contains the beginning of it.
func ParseRecord(raw string) (Record, error) {
	prefix, text, ok := strings.Cut(raw, ";")
	fields := strings.Split(prefix, ",")
	const minimum = 4
	if !ok || len(fields) < minimum {
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
	return Record{
		Sequence: sequence, At: time.Duration(at) * time.Microsecond,
		Kernel: priority>>facilityShift == 0, Message: message,
	}, nil
}

// maxAt is the longest time that fits, 292 years.
const maxAt = time.Duration(math.MaxInt64)

// malformed returns the error for a text that is not a record, with the beginning of the text.
func malformed(raw string) error {
	const shown = 64
	return fmt.Errorf("%.*q is not a record of the kernel's log", shown, raw)
}
