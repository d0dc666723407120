package gosettings

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

// role is set in a child.
const role = "GOSETTINGS_TEST_CHILD"

// TestAChildHasTheSettingsOfItsNodeFromItsBegin runs this program as a child that prints its settings before and after
// Begin. They are not in the environment of its own children.
func TestAChildHasTheSettingsOfItsNodeFromItsBegin(t *testing.T) {
	if os.Getenv(role) != "" {
		percent, processors := debug.SetGCPercent(-1), runtime.GOMAXPROCS(0)
		debug.SetGCPercent(percent)
		Begin()
		fmt.Println(percent, debug.SetGCPercent(-1), processors, runtime.GOMAXPROCS(0), environment())
		return
	}
	machine := runtime.GOMAXPROCS(3)
	t.Cleanup(func() { runtime.GOMAXPROCS(machine) })
	own := max(1, machine/4)
	for name, test := range map[string]struct {
		environ []string
		child   bool
		want    string
	}{
		"a child":                    {nil, true, "400 200 3 3 []"},
		"a program by itself":        {nil, false, fmt.Sprintf("100 200 %d %d []", machine, min(own, 4))},
		"the operator's collections": {[]string{"GOGC=70"}, true, "70 70 3 3 [GOGC=70]"},
		"the operator's processors":  {[]string{"GOMAXPROCS=2"}, true, "400 200 2 2 [GOMAXPROCS=2]"},
		"both are the operator's":    {[]string{"GOGC=70", "GOMAXPROCS=2"}, true, "70 70 2 2 [GOGC=70 GOMAXPROCS=2]"},
		"variables of similar names": {[]string{"GOGCX=70"}, true, "400 200 3 3 [GOGCX=70]"},
	} {
		t.Run(name, func(t *testing.T) {
			child := exec.Command(os.Args[0], "-test.run=^TestAChildHasTheSettingsOfItsNodeFromItsBegin$")
			child.Env = append([]string{role + "=1"}, test.environ...)
			if test.child {
				child.Env = ChildEnv(child.Env)
			}
			out, err := child.CombinedOutput()
			if line, _, _ := strings.Cut(string(out), "\n"); err != nil || line != test.want {
				t.Errorf("%v: %s, want %s", err, out, test.want)
			}
		})
	}
}

// environment returns the environment without the role.
func environment() []string {
	if err := os.Unsetenv(role); err != nil {
		return []string{err.Error()}
	}
	return os.Environ()
}
