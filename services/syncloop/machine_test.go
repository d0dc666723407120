package syncloop

import (
	"log/slog"
	"testing"
	"testing/fstest"
)

func TestMachineOf(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	profiles := file("docker-default (enforce)\n")
	for name, tc := range map[string]struct {
		files    fstest.MapFS
		kernel   string
		appArmor bool
	}{
		"nothing is known":          {files: fstest.MapFS{}},
		"a release of Debian":       {files: fstest.MapFS{"proc/sys/kernel/osrelease": file("6.1.0-18-amd64\n")}, kernel: "6.1.0"},
		"a release that is no such": {files: fstest.MapFS{"proc/sys/kernel/osrelease": file("new\n")}},
		"AppArmor": {files: fstest.MapFS{
			"sys/kernel/security/apparmor/profiles": profiles, "sys/module/apparmor/parameters/enabled": file("Y\n"),
		}, appArmor: true},
		"AppArmor that is turned off": {files: fstest.MapFS{
			"sys/kernel/security/apparmor/profiles": profiles, "sys/module/apparmor/parameters/enabled": file("N\n"),
		}},
		"AppArmor of the kernel that is not mounted": {files: fstest.MapFS{"sys/module/apparmor/parameters/enabled": file("Y\n")}},
	} {
		t.Run(name, func(t *testing.T) {
			got := machineOf(tc.files, slog.New(slog.DiscardHandler))
			kernel := ""
			if got.Kernel != nil {
				kernel = got.Kernel.String()
			}
			if kernel != tc.kernel || got.AppArmor != tc.appArmor {
				t.Errorf("the kernel is %q, AppArmor %v; want %q, %v", kernel, got.AppArmor, tc.kernel, tc.appArmor)
			}
		})
	}
}
