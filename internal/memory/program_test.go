package memory

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestOnlyPagesThatEqualTheFileAreGivenUp has the mappings of a program at work.
func TestOnlyPagesThatEqualTheFileAreGivenUp(t *testing.T) {
	const program = "/usr/bin/quartet"
	of := func(addresses, permissions, file string, anonymous int) string {
		return fmt.Sprintf("%s %s 00000000 fe:00 1048602                            %s\n"+
			"Size: 22356 kB\nRss: 1024 kB\nAnonymous:      %d kB\nTHPeligible:    0\nVmFlags: rd ex mr mw me\n",
			addresses, permissions, file, anonymous)
	}
	for name, test := range map[string]struct {
		smaps string
		want  []mapping
	}{
		"code and constants": {
			of("00400000-01000000", "r-xp", program, 0) + of("01000000-02000000", "r--p", program, 0),
			[]mapping{{0x400000, 0x1000000}, {0x1000000, 0x2000000}},
		},
		"variables":                    {of("02000000-02400000", "rw-p", program, 0), nil},
		"a breakpoint of a debugger":   {of("00400000-01000000", "r-xp", program, 4), nil},
		"another file":                 {of("00400000-01000000", "r-xp", "/usr/lib/libc.so.6", 0), nil},
		"a file whose name begins so":  {of("00400000-01000000", "r-xp", program+".debug", 0), nil},
		"a file whose name has spaces": {of("00400000-01000000", "r-xp", "/opt/my programs/quartet", 0), nil},
		"the heap, which has no file": {
			"c000000000-c000400000 rw-p 00000000 00:00 0 \nAnonymous: 0 kB\n" + of("00400000-01000000", "r-xp", program, 0),
			[]mapping{{0x400000, 0x1000000}},
		},
		"no addresses":         {of("x-y", "r-xp", program, 0), nil},
		"addresses in reverse": {of("01000000-00400000", "r-xp", program, 0), nil},
		"nothing":              {"", nil},
		"half a line":          {"00400000-01000000 r-xp", nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := cleanMappings(strings.NewReader(test.smaps), program); !slices.Equal(got, test.want) {
				t.Errorf("got %x, want %x", got, test.want)
			}
		})
	}
}

// TestTheProgramWorksWithoutItsPages gives up those of this test, which has to map again what it uses.
func TestTheProgramWorksWithoutItsPages(t *testing.T) {
	for range 3 {
		if released := releaseProgram(); released == 0 {
			t.Fatal("no page of the program was given up")
		}
		if !regexp.MustCompile(`^[a-z]+ [0-9]+$`).MatchString(fmt.Sprintf("page %d", 7)) {
			t.Fatal("the program does not work any more")
		}
	}
}

func FuzzCleanMappings(f *testing.F) {
	f.Add("00400000-01000000 r-xp 00000000 fe:00 1048602                            /usr/bin/quartet\nAnonymous: 0 kB\n")
	f.Fuzz(func(t *testing.T, smaps string) {
		for _, m := range cleanMappings(strings.NewReader(smaps), "/usr/bin/quartet") {
			if m.start >= m.end {
				t.Errorf("a mapping from %x to %x", m.start, m.end)
			}
		}
	})
}
