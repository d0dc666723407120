// Command testimages prints the images of upstream's specs, one per line: its key, then its name with its tag.
package main

import (
	"fmt"

	"k8s.io/kubernetes/test/utils/image"
)

func main() {
	for _, i := range []struct {
		what string
		id   image.ImageID
	}{
		{"agnhost", image.Agnhost},
		{"agnhost", image.AgnhostPrev},
		{"busybox", image.BusyBox},
		{"kitten", image.Kitten},
		{"nginx", image.Nginx},
		{"nginx", image.NginxNew},
		{"nonewprivs", image.Nonewprivs},
		{"nonroot", image.NonRoot},
		{"pause", image.Pause},
	} {
		fmt.Println(i.what, image.GetE2EImage(i.id))
	}
}
