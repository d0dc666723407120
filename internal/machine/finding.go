package machine

import (
	"errors"
	"fmt"
)

// Level says what a finding means.
type Level int

// The levels, from good to bad.
const (
	// OK: it is as it has to be.
	OK Level = iota
	// Warning: the node runs, with less than it could have.
	Warning
	// Fault: the node cannot run, or harms what it runs beside.
	Fault
)

// String is the word that people and scripts read.
func (l Level) String() string {
	switch l {
	case OK:
		return "ok"
	case Warning:
		return "warning"
	case Fault:
		return "fault"
	default:
		return fmt.Sprintf("level %d", int(l))
	}
}

// MarshalText writes a level as its word.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// Finding is the result of one check.
type Finding struct {
	// Check is what was looked at, in a word or three.
	Check string `json:"check"`
	// Level is what came of it.
	Level Level `json:"result"`
	// Detail says what is there or what is lacking.
	Detail string `json:"detail"`
	// Fix is what to do about it: a command, or the setting to change. Empty when nothing has to be done.
	Fix string `json:"fix,omitempty"`
}

// Ok is the finding of something that is as it has to be.
func Ok(check, format string, args ...any) Finding {
	return Finding{Check: check, Level: OK, Detail: fmt.Sprintf(format, args...)}
}

// With returns the finding at another level, with what is wrong and what to do about it.
func (f Finding) With(level Level, detail, fix string) Finding {
	f.Level, f.Detail, f.Fix = level, detail, fix
	return f
}

// Unknown is the finding of a fact that cannot be read.
func Unknown(check string, err error) Finding {
	return Finding{
		Check: check, Level: Warning, Detail: "cannot be told: " + err.Error(),
		Fix: "run the command as root, on the machine itself",
	}
}

// Findings are the results of several checks.
type Findings []Finding

// Err names every fault and what to do about it, at once; nil when there is none.
func (f Findings) Err() error {
	var errs []error
	for _, finding := range f {
		if finding.Level == Fault {
			errs = append(errs, fmt.Errorf("%s: %s: %s", finding.Check, finding.Detail, finding.Fix))
		}
	}
	return errors.Join(errs...)
}

// Count is how many findings have a level.
func (f Findings) Count(level Level) int {
	n := 0
	for _, finding := range f {
		if finding.Level == level {
			n++
		}
	}
	return n
}
