package boottime

import (
	"fmt"
	"os"
	"strings"
)

// bootIDFile holds the unique ID of the machine's current boot.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// Boot returns the ID of the machine's current boot. It is used to detect records from before a reboot. It fails if the
// kernel does not provide it.
func Boot() (string, error) {
	id, err := os.ReadFile(bootIDFile)
	if err != nil {
		return "", fmt.Errorf("reading the boot ID of the machine: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}
