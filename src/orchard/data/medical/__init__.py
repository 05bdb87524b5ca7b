"""Medical images: DICOM and NIfTI files, and masks of images."""
