package oom_test

import (
	"strings"
	"testing"
	"time"

	"github.com/quartet-node/quartet/services/syncloop/internal/node/oom"
)

func TestARecordIsReadAsTheKernelWritesIt(t *testing.T) {
	for raw, want := range map[string]oom.Record{
		"6,339,5140900,-;NET: Registered protocol family 10\n": {
			Sequence: 339, At: 5140900 * time.Microsecond, Kernel: true, Message: "NET: Registered protocol family 10",
		},
		"7,160,424069,-;pci_root PNP0A03:00: [io 0x0000-0x0cf7]; ignored\n SUBSYSTEM=acpi\n DEVICE=+acpi:PNP0A03:00\n": {
			Sequence: 160, At: 424069 * time.Microsecond, Kernel: true,
			Message: "pci_root PNP0A03:00: [io 0x0000-0x0cf7]; ignored",
		},
		"12,9001,0,c,caller=T1;said by a process": {Sequence: 9001, Message: "said by a process"},
		`3,1,1,-;a name with \x0a in it` + "\n":   {Sequence: 1, At: time.Microsecond, Kernel: true, Message: `a name with \x0a in it`},
		"6,2,2,-;\n":                              {Sequence: 2, At: 2 * time.Microsecond, Kernel: true},
	} {
		got, err := oom.ParseRecord(raw)
		if err != nil || got != want {
			t.Errorf("%q is %+v, %v; want %+v", raw, got, err, want)
		}
	}
}

func TestWhatIsNoRecordIsRefused(t *testing.T) {
	for _, raw := range []string{
		"", ";", "6,1,1;three fields", "x,1,1,-;priority", "6,-1,1,-;sequence", "6,1,y,-;time",
		"6,1,18446744073709551615,-;too long ago", "no head\n",
	} {
		if r, err := oom.ParseRecord(raw); err == nil {
			t.Errorf("%q is read as %+v", raw, r)
		}
	}
	if _, err := oom.ParseRecord(strings.Repeat("x", 1<<20)); err == nil || len(err.Error()) > 200 {
		t.Errorf("the error repeats too much of the text: %.300v", err)
	}
}

// FuzzRecord checks that no text makes ParseRecord panic, and that the message of a record is one line of the text.
func FuzzRecord(f *testing.F) {
	f.Add("6,339,5140900,-;NET: Registered protocol family 10\n SUBSYSTEM=net\n")
	f.Add("12,1,18014398509481983,c,caller=T1;x")
	f.Fuzz(func(t *testing.T, raw string) {
		r, err := oom.ParseRecord(raw)
		if err != nil {
			return
		}
		if r.At < 0 || strings.Contains(r.Message, "\n") || !strings.Contains(raw, ";"+r.Message) {
			t.Errorf("%q is read as %+v", raw, r)
		}
	})
}
