package boottime

import (
	"fmt"
	"os"
	"strings"
)

// bootIDFile says which boot of the machine this is, by a name that no other has.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// Boot names this boot of the machine, so that what was written down in another one can be told from what counts still. It fails
// when the kernel does not say.
func Boot() (string, error) {
	id, err := os.ReadFile(bootIDFile)
	if err != nil {
		return "", fmt.Errorf("asking which boot of the machine this is: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}
